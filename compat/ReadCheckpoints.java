import java.io.File;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

/** Reads a data directory's small files with Kafka's own classes and prints what it found. */
public class ReadCheckpoints {
    public static void main(String[] arguments) throws Exception {
        LogDirFailureChannel failures = new LogDirFailureChannel(1);
        for (String path : arguments) {
            File file = new File(path);
            switch (file.getName()) {
                case "leader-epoch-checkpoint":
                    new LeaderEpochCheckpointFile(file, failures).read().forEach(
                        entry -> System.out.println("epoch " + entry.epoch() + " " + entry.startOffset()));
                    break;
                case "partition.metadata":
                    System.out.println("topic id " + new PartitionMetadataFile(file, failures).read().topicId());
                    break;
                default:
                    for (Map.Entry<TopicPartition, Long> entry : new OffsetCheckpointFile(file, failures).read().entrySet())
                        System.out.println(file.getName() + " " + entry.getKey() + " " + entry.getValue());
            }
        }
    }
}
