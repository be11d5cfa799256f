import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional producer that takes one command from each line of its input:
 * init, begin, send TOPIC VALUE, offset GROUP TOPIC OFFSET, commit, abort, fence TRANSACTIONAL-ID.
 * Arguments: address, transactional id, settings. Partitions are 0.
 * Answers each command with "done" or "failed EXCEPTION MESSAGE".
 */
public class TransactionalProducer {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", arguments[1]);
        for (int i = 2; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (String line; (line = commands.readLine()) != null; ) {
                System.out.println(answer(producer, arguments[0], line.split(" ")));
            }
        }
    }

    private static String answer(
            KafkaProducer<String, String> producer, String address, String[] words) {
        try {
            run(producer, address, words);
            return "done";
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            return "failed " + cause.getClass().getSimpleName() + " " + cause.getMessage();
        }
    }

    private static void run(
            KafkaProducer<String, String> producer, String address, String[] words)
            throws Exception {
        switch (words[0]) {
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[1], 0, null, words[2])).get();
            case "offset" ->
                producer.sendOffsetsToTransaction(
                    Map.of(
                        new TopicPartition(words[2], 0),
                        new OffsetAndMetadata(Long.parseLong(words[3]))),
                    new ConsumerGroupMetadata(words[1]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "fence" -> {
                try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
                    admin.fenceProducers(List.of(words[1])).all().get();
                }
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
    }
}
