import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.jdbc.JdbcCatalog;

/**
 * Reads a table with Iceberg's own classes: its rows, the partition of each as they compute it, its files, and the
 * ids of the rows for conditions, as `id EQ 7`. Then it writes the table's manifests anew.
 */
public class ReadIceberg {
    public static void main(String[] arguments) throws Exception {
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.setConf(new Configuration());
        catalog.initialize("default", Map.of(
            "uri", "jdbc:sqlite:" + arguments[0] + "/catalog.db",
            "warehouse", arguments[0],
            "jdbc.schema-version", "V1"));
        Table table = catalog.loadTable(TableIdentifier.parse(arguments[1]));
        try (CloseableIterable<FileScanTask> files = table.newScan().planFiles()) {
            for (FileScanTask file : files)
                System.out.println("file " + table.spec().partitionToPath(file.file().partition())
                    + " " + file.file().recordCount());
        }
        InternalRecordWrapper wrapper = new InternalRecordWrapper(table.schema().asStruct());
        PartitionKey partition = new PartitionKey(table.spec(), table.schema());
        Map<Object, String> rows = new TreeMap<>();
        try (CloseableIterable<Record> found = IcebergGenerics.read(table).build()) {
            for (Record row : found) {
                partition.partition(wrapper.wrap(row));
                rows.put(row.getField("id"), partition.toPath() + " " + row);
            }
        }
        rows.values().forEach(row -> System.out.println("row " + row));
        for (int at = 2; at < arguments.length; at++) {
            String[] words = arguments[at].split(" ");
            Expression.Operation operation = Expression.Operation.fromString(words[1]);
            Expression condition = words.length == 2
                ? Expressions.predicate(operation, words[0])
                : Expressions.predicate(
                    operation, words[0], words[2].matches("\\d+") ? (Object) Long.valueOf(words[2]) : words[2]);
            Map<Object, Record> kept = new TreeMap<>();
            try (CloseableIterable<Record> found =
                     IcebergGenerics.read(table).where(condition).build()) {
                for (Record row : found)
                    kept.put(row.getField("id"), row);
            }
            System.out.println("where " + arguments[at] + " " + kept.keySet());
        }
        table.rewriteManifests().clusterBy(file -> 0).commit();
        catalog.close();
    }
}
