import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerConfig;

/** Prints the names of all settings of Kafka's consumer. */
public class ConsumerKeys {
    public static void main(String[] arguments) {
        new TreeSet<>(ConsumerConfig.configDef().names()).forEach(System.out::println);
    }
}
