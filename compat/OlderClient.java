import java.time.Duration;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What a program does with clients of any release: creates a topic, writes to it idempotently and
 * in a transaction, and reads it in a group. Arguments: address, topic, number of records of each kind.
 * Prints "read VALUE" for each record, then "committed OFFSET".
 */
public class OlderClient {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        try (AdminClient admin = AdminClient.create(settings(arguments[0]))) {
            admin.createTopics(Collections.singleton(new NewTopic(topic, 1, (short) 1))).all().get();
        }
        Properties idempotent = settings(arguments[0]);
        idempotent.put("enable.idempotence", "true");
        write(idempotent, topic, "plain", count);
        Properties transactional = settings(arguments[0]);
        transactional.put("transactional.id", topic);
        write(transactional, topic, "transactional", count);
        read(arguments[0], topic, 2 * count);
    }

    private static Properties settings(String address) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("request.timeout.ms", "20000");
        return settings;
    }

    private static void write(Properties settings, String topic, String prefix, int count) {
        boolean inTransaction = settings.containsKey("transactional.id");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            if (inTransaction) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, "key", prefix + i));
            }
            if (inTransaction) {
                producer.commitTransaction();
            }
        }
    }

    private static void read(String address, String topic, int count) {
        Properties settings = settings(address);
        settings.put("group.id", topic);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(Collections.singleton(topic));
            long deadline = System.currentTimeMillis() + 60_000;
            for (int found = 0; found < count && System.currentTimeMillis() < deadline; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println("read " + record.value());
                    found++;
                }
            }
            consumer.commitSync();
            consumer.assignment().forEach(
                    partition -> System.out.println("committed " + consumer.position(partition)));
        }
    }
}
