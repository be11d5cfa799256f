import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of one group that come and go while they read a topic, and commit after processing.
 * Arguments: address, topic, group, number of records, settings of the consumer.
 * Prints "read MEMBER VALUE" for each record and "assigned|revoked|lost MEMBER PARTITIONS".
 */
public class GroupMembers {
    private static final Set<String> READ = ConcurrentHashMap.newKeySet();
    private static volatile int allowed;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "10");
        int wanted = Integer.parseInt(arguments[3]);
        for (int i = 4; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        Member first = new Member("first", settings, arguments[1]);
        read(wanted / 4);
        Member second = new Member("second", settings, arguments[1]);
        second.awaitAssignment();
        read(wanted / 2);
        Member third = new Member("third", settings, arguments[1]);
        third.awaitAssignment();
        read(wanted * 3 / 4);
        first.leave();
        read(wanted);
        second.leave();
        third.leave();
    }

    /** Let the members read so many in all. */
    private static void read(int count) throws InterruptedException {
        allowed = count;
        while (READ.size() < count) {
            Thread.sleep(10);
        }
    }

    private static synchronized void say(String what) {
        System.out.println(what);
    }

    private static class Member extends Thread implements ConsumerRebalanceListener {
        private final KafkaConsumer<String, String> consumer;
        private volatile boolean leaves;
        private volatile boolean isAssigned;

        Member(String name, Properties settings, String topic) {
            super(name);
            Properties own = new Properties();
            own.putAll(settings);
            own.put("client.id", name);
            consumer =
                new KafkaConsumer<>(own, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(topic), this);
            start();
        }

        void awaitAssignment() throws InterruptedException {
            while (!isAssigned) {
                Thread.sleep(10);
            }
        }

        void leave() throws InterruptedException {
            leaves = true;
            join();
        }

        @Override
        public void run() {
            try {
                while (!leaves) {
                    if (READ.size() < allowed) {
                        consumer.resume(consumer.assignment());
                    } else {
                        consumer.pause(consumer.assignment());
                    }
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                        say("read " + getName() + " " + record.value());
                        READ.add(record.value());
                    }
                    commit();
                    Thread.sleep(5);
                }
            } catch (Throwable error) {
                say("failed " + getName() + " " + error);
            } finally {
                consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)));
            }
        }

        /** What was read so far. While a rebalance completes it is refused, and done later. */
        private void commit() {
            try {
                consumer.commitSync();
            } catch (RebalanceInProgressException again) {
                say("later " + getName());
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("assigned", partitions);
            isAssigned |= !partitions.isEmpty();
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            commit();
            tell("revoked", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            tell("lost", partitions);
        }

        private void tell(String what, Collection<TopicPartition> partitions) {
            List<Integer> indices = new ArrayList<>();
            partitions.forEach(partition -> indices.add(partition.partition()));
            indices.sort(null);
            say(what + " " + getName() + " " + indices.toString().replace(" ", ""));
        }
    }
}
