import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CyclicBarrier;
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
        Map<String, Object> settings = new HashMap<>(more);
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

    /**
     * Producers on threads of their own: address, topic, partitions, producers, records of a
     * transaction (0: no transactions, only idempotence), bytes, transactional id, milliseconds to
     * warm up, milliseconds to measure. Prints transactions (or records) a second of all of them
     * together, and how many there were with those of the warm-up.
     */
    public static final class Transactions {
        private static final int RUN = 25; // records to one partition after another

        private final String[] arguments;
        private final int partitions, records;
        private final byte[] value;
        private final CyclicBarrier start;
        private double perSecond = 0;
        private long all = 0;
        private volatile Exception failure = null;

        private Transactions(String[] arguments) {
            this.arguments = arguments;
            this.partitions = number(2);
            this.start = new CyclicBarrier(number(3));
            this.records = number(4);
            this.value = new byte[number(5)];
        }

        private int number(int place) {
            return Integer.parseInt(arguments[place]);
        }

        public static void main(String[] arguments) throws Exception {
            Transactions load = new Transactions(arguments);
            List<Thread> threads = new ArrayList<>();
            for (int place = 0; place < load.number(3); place++) {
                int each = place;
                threads.add(new Thread(() -> load.run(each)));
            }
            threads.forEach(Thread::start);
            for (Thread thread : threads) {
                thread.join();
            }
            if (load.failure != null) {
                throw load.failure;
            }
            System.out.println(load.perSecond + " " + load.all);
        }

        private void run(int place) {
            Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", arguments[0]));
            boolean isTransactional = records > 0;
            if (isTransactional) {
                settings.put("transactional.id", arguments[6] + "-" + place);
            }
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                     settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                if (isTransactional) {
                    producer.initTransactions();
                }
                producer.partitionsFor(arguments[1]);
                start.await();
                long warm = repeat(producer, place, number(7));
                long began = System.nanoTime();
                long counted = repeat(producer, place, number(8));
                double rate = counted * 1e9 / (System.nanoTime() - began);
                synchronized (this) {
                    perSecond += rate;
                    all += warm + counted;
                }
            } catch (Exception failed) {
                failure = failed;
                start.reset(); // whoever waits there ends, too
            }
        }

        /** Whole transactions, or a run of acknowledged records, for so many milliseconds. */
        private long repeat(KafkaProducer<byte[], byte[]> producer, int place, int millis)
                throws Exception {
            long until = System.nanoTime() + millis * 1_000_000L, done = 0;
            do {
                if (records > 0) {
                    producer.beginTransaction();
                    for (int sent = 0; sent < records; sent++) {
                        send(producer, place + sent / RUN);
                    }
                    producer.commitTransaction();
                    done++;
                } else {
                    for (int sent = 0; sent < RUN; sent++) {
                        send(producer, place + (int) (done / RUN));
                        done++;
                    }
                }
            } while (System.nanoTime() < until);
            producer.flush();
            if (failure != null) {
                throw failure;
            }
            return done;
        }

        private void send(KafkaProducer<byte[], byte[]> producer, int place) {
            int partition = place % partitions;
            producer.send(new ProducerRecord<>(arguments[1], partition, null, value), (sent, failed) -> {
                if (failed != null) {
                    failure = failed;
                }
            });
        }
    }
}
