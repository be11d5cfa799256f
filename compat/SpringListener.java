import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaAdmin;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.config.TopicBuilder;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * What a Spring application does: KafkaAdmin creates topics, a template writes in a transaction, and two
 * threads of a listener container read, process and write in transactions, with retries and a dead-letter
 * topic. Arguments: address, topic, number of records. Every tenth record fails each time.
 * The results are in TOPIC-out and TOPIC-dead.
 */
public class SpringListener {
    public static void main(String[] arguments) throws Exception {
        String address = arguments[0], topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        KafkaAdmin admin = new KafkaAdmin(Map.of("bootstrap.servers", address));
        admin.createOrModifyTopics(
                TopicBuilder.name(topic).partitions(2).replicas(1).build(),
                TopicBuilder.name(topic + "-out").partitions(1).replicas(1).build(),
                TopicBuilder.name(topic + "-dead").partitions(1).replicas(1).build());

        DefaultKafkaProducerFactory<String, String> producers = new DefaultKafkaProducerFactory<>(
                Map.of("bootstrap.servers", address), new StringSerializer(), new StringSerializer());
        producers.setTransactionIdPrefix(topic + "-");
        KafkaTemplate<String, String> template = new KafkaTemplate<>(producers);
        template.executeInTransaction(operations -> {
            for (int i = 0; i < count; i++) {
                operations.send(topic, String.valueOf(i), "order " + i);
            }
            return null;
        });

        CountDownLatch done = new CountDownLatch(count);
        ContainerProperties properties = new ContainerProperties(topic);
        properties.setGroupId(topic);
        properties.setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        properties.setMessageListener((MessageListener<String, String>) record -> {
            template.send(topic + "-out", record.key(), record.value() + " done");
            if (Integer.parseInt(record.key()) % 10 == 9) {
                throw new IllegalStateException("every tenth record fails");
            }
            done.countDown();
        });
        DefaultKafkaConsumerFactory<String, String> consumers = new DefaultKafkaConsumerFactory<>(
                Map.of(
                        "bootstrap.servers", address,
                        "auto.offset.reset", "earliest",
                        "isolation.level", "read_committed",
                        "max.poll.records", "5"),
                new StringDeserializer(), new StringDeserializer());
        ConcurrentMessageListenerContainer<String, String> container =
                new ConcurrentMessageListenerContainer<>(consumers, properties);
        container.setConcurrency(2);
        DeadLetterPublishingRecoverer dead = new DeadLetterPublishingRecoverer(template,
                (record, error) -> new TopicPartition(topic + "-dead", 0));
        container.setAfterRollbackProcessor(new DefaultAfterRollbackProcessor<>(
                (record, error) -> {
                    dead.accept(record, error);
                    done.countDown();
                },
                new FixedBackOff(10, 2), template, true));
        container.start();
        boolean inTime = done.await(3, TimeUnit.MINUTES);
        container.stop();
        producers.destroy();
        System.out.println(inTime ? "all were processed" : "missing " + done.getCount());
    }
}
