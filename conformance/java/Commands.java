import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools in one Java machine, which saves the start of one for each. Each line of standard input
 * is a JSON list, the class of a tool and its arguments; each line of standard output is what it printed and its exit code.
 */
public class Commands {
    static class Ended extends Error {
        final int code;

        Ended(int code) { this.code = code; }
    }

    public static void main(String[] none) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        // once and for all tools: Scala's console keeps the stream that it finds first
        System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
        System.setErr(System.out);
        Exit.Procedure end = (code, message) -> { throw new Ended(code); };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode words = json.readTree(line);
            String[] arguments = new String[words.size() - 1];
            for (int n = 0; n < arguments.length; n++) {
                arguments[n] = words.get(n + 1).asText();
            }
            said.reset();
            int code = run(words.get(0).asText(), arguments);
            answers.println(json.writeValueAsString(Map.of("code", code, "said", said.toString(StandardCharsets.UTF_8))));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static int run(String tool, String[] arguments) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException failure) {
            if (failure.getCause() instanceof Ended ended) {
                return ended.code;
            }
            System.out.println(failure.getCause());
            return 1;
        }
    }
}
