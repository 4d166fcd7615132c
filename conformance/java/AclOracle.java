import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
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
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Answers questions with Kafka's own StandardAuthorizer. Lines of standard input, with tabs:
 *
 * <p>set, whether everybody may use what no ACL is about: forget all ACLs.
 * acl, type, name, pattern type, principal, host, operation, permission: add one.
 * ask, principal type, principal name, host, operation, type, name: print 1 if it is allowed, else 0.
 * any, principal type, principal name, host, operation, type: the same for any resource of a type.
 */
public class AclOracle {
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return ""; }
        public int correlationId() { return 0; }
    }

    static StandardAuthorizer make(boolean everyone) {
        StandardAuthorizer made = new StandardAuthorizer();
        made.configure(Map.of("super.users", "User:root", "allow.everyone.if.no.acl.found", String.valueOf(everyone)));
        made.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        made.completeInitialLoad();
        return made;
    }

    public static void main(String[] arguments) throws Exception {
        StandardAuthorizer open = make(true), closed = make(false), authorizer = closed;
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        boolean loaded = false;
        long number = 2;
        StringBuilder answers = new StringBuilder();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split("\t", -1);
            if (f[0].equals("set")) {
                authorizer = f[1].equals("1") ? open : closed;
                acls.clear();
                loaded = false;
                continue;
            }
            if (f[0].equals("acl")) {
                acls.put(new Uuid(1, number++), new StandardAcl(
                    ResourceType.valueOf(f[1]), f[2], PatternType.valueOf(f[3]), f[4], f[5],
                    AclOperation.valueOf(f[6]), AclPermissionType.valueOf(f[7])));
                continue;
            }
            if (!loaded) {
                authorizer.loadSnapshot(acls);
                loaded = true;
            }
            Context context = new Context(new KafkaPrincipal(f[1], f[2]), InetAddress.getByName(f[3]));
            AclOperation operation = AclOperation.valueOf(f[4]);
            ResourceType type = ResourceType.valueOf(f[5]);
            AuthorizationResult result;
            if (f[0].equals("ask")) {
                ResourcePattern pattern = new ResourcePattern(type, f[6], PatternType.LITERAL);
                result = authorizer.authorize(context, List.of(new Action(operation, pattern, 1, false, false))).get(0);
            } else {
                result = authorizer.authorizeByResourceType(context, operation, type);
            }
            answers.append(result == AuthorizationResult.ALLOWED ? '1' : '0');
        }
        System.out.println(answers);
    }
}
