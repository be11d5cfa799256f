import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs one Java load after another in one JVM, which stays warm and whose start nobody measures.
 *
 * A line of standard input names a class and its arguments, with tabs between them; its output is
 * followed by a line "@ended" and an exit code.
 */
public class Loads {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    public static void main(String[] unused) throws Exception {
        Exit.setExitProcedure((code, message) -> {
            throw new Ended(code);
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            int code = run(words[0], Arrays.copyOfRange(words, 1, words.length));
            System.out.println("@ended " + code);
            System.out.flush();
        }
    }

    private static int run(String name, String[] arguments) throws Exception {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException failed) {
            if (failed.getCause() instanceof Ended ended) {
                return ended.code;
            }
            failed.getCause().printStackTrace();
            return 1;
        }
    }

    /** A tool asked for the end of the JVM. */
    private static final class Ended extends RuntimeException {
        final int code;

        Ended(int code) {
            this.code = code;
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String address, Map<String, Object> more) {
        Map<String, Object> settings = new java.util.HashMap<>(more);
        settings.put("bootstrap.servers", address);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /**
     * ConsumerPerformance with assign() instead of a group: address, topic, records, times.
     * Partition 0 is read so many times from its start. Prints records, bytes,
     * nanoseconds, and those that this thread had a processor.
     */
    public static final class Consume {
        public static void main(String[] arguments) {
            TopicPartition partition = new TopicPartition(arguments[1], 0);
            long wanted = Long.parseLong(arguments[2]);
            long bytes = 0, records = 0, took = 0, busy = 0;
            ThreadMXBean threads = ManagementFactory.getThreadMXBean();
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(arguments[0], Map.of())) {
                consumer.assign(List.of(partition));
                for (int time = 0; time < Integer.parseInt(arguments[3]); time++) {
                    consumer.seekToBeginning(List.of(partition));
                    consumer.position(partition); // connected, and it knows where to start
                    long cpu = threads.getCurrentThreadCpuTime();
                    long start = System.nanoTime();
                    for (long got = 0; got < wanted; ) {
                        ConsumerRecords<byte[], byte[]> polled = consumer.poll(PATIENCE);
                        if (polled.isEmpty()) {
                            throw new IllegalStateException("only " + got + " records arrived");
                        }
                        for (ConsumerRecord<byte[], byte[]> record : polled) {
                            bytes += record.value().length;
                        }
                        got += polled.count();
                        records += polled.count();
                    }
                    took += System.nanoTime() - start;
                    busy += threads.getCurrentThreadCpuTime() - cpu;
                }
            }
            System.out.println(records + " " + bytes + " " + took + " " + busy);
        }
    }

    /**
     * EndToEndLatency in nanoseconds (Apache's class prints whole milliseconds) and without its
     * commit: address, topic, warm-up records, records, bytes. Prints one number for each record.
     */
    public static final class Latency {
        public static void main(String[] arguments) throws Exception {
            TopicPartition partition = new TopicPartition(arguments[1], 0);
            int warmUp = Integer.parseInt(arguments[2]);
            int total = warmUp + Integer.parseInt(arguments[3]);
            byte[] value = new byte[Integer.parseInt(arguments[4])];
            Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0], "acks", "all", "linger.ms", "0");
            StringBuilder taken = new StringBuilder();
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(arguments[0], Map.of("fetch.max.wait.ms", "0"));
                 KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                     settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                consumer.assign(List.of(partition));
                consumer.seekToEnd(List.of(partition));
                consumer.position(partition);
                for (int number = 0; number < total; number++) {
                    long start = System.nanoTime();
                    producer.send(new ProducerRecord<>(arguments[1], 0, null, value)).get();
                    int count = consumer.poll(PATIENCE).count();
                    long took = System.nanoTime() - start;
                    if (count != 1) {
                        throw new IllegalStateException(count + " records arrived instead of one");
                    }
                    if (number >= warmUp) {
                        taken.append(took).append(' ');
                    }
                }
            }
            System.out.println(taken);
        }
    }
}
