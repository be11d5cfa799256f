import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Asks Kafka's StandardAuthorizer. Lines of standard input, their parts separated by tabs:
 * "new" with super users and the default, "rule", and "ask", which prints ALLOWED or DENIED.
 */
public class Decisions {
    record Client(KafkaPrincipal principal, InetAddress clientAddress)
            implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return "client"; }
        public int correlationId() { return 0; }
    }

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        var authorizer = new StandardAuthorizer();
        var answers = new StringBuilder();
        for (String line; (line = input.readLine()) != null;) {
            String[] part = line.split("\t", -1);
            switch (part[0]) {
                case "new" -> {
                    authorizer = new StandardAuthorizer();
                    authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                    authorizer.configure(Map.of("node.id", "0", "super.users", part[1],
                            "allow.everyone.if.no.acl.found", part[2]));
                    authorizer.completeInitialLoad();
                }
                case "rule" -> authorizer.addAcl(Uuid.randomUuid(), new StandardAcl(
                        ResourceType.fromCode(Byte.parseByte(part[1])), part[3],
                        PatternType.fromCode(Byte.parseByte(part[2])), part[4], part[5],
                        AclOperation.fromCode(Byte.parseByte(part[6])),
                        AclPermissionType.fromCode(Byte.parseByte(part[7]))));
                default -> answers.append(decide(authorizer, part)).append('\n');
            }
        }
        System.out.print(answers);
    }

    /** The principal, its host, the operation, the type of the resource, and its name or nothing. */
    static AuthorizationResult decide(StandardAuthorizer authorizer, String[] part)
            throws Exception {
        var client = new Client(
                SecurityUtils.parseKafkaPrincipal(part[1]), InetAddress.getByName(part[2]));
        var operation = AclOperation.fromCode(Byte.parseByte(part[3]));
        var type = ResourceType.fromCode(Byte.parseByte(part[4]));
        if (part[5].isEmpty())
            return authorizer.authorizeByResourceType(client, operation, type);
        var pattern = new ResourcePattern(type, part[5], PatternType.LITERAL);
        return authorizer.authorize(
                client, List.of(new Action(operation, pattern, 1, false, false))).get(0);
    }
}
