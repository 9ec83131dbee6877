import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Acquires and releases Curator's locks by commands on standard input, one per
 * line, and answers each with one line: "acquire PATH" by "held PATH", "try PATH"
 * by that or "busy PATH", "release PATH" by "released PATH".
 *
 * <p>Arguments: the servers, the session timeout in milliseconds.
 */
public class LockClient {
  public static void main(String[] args) throws Exception {
    CuratorFramework client = CuratorFrameworkFactory.newClient(
        args[0], Integer.parseInt(args[1]), 5000, new ExponentialBackoffRetry(100, 5));
    client.start();
    client.blockUntilConnected();
    System.out.println("ready");
    Map<String, InterProcessMutex> locks = new HashMap<>();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ", 2);
      InterProcessMutex lock = locks.computeIfAbsent(words[1], path -> new InterProcessMutex(client, path));
      System.out.println(run(lock, words[0]) + " " + words[1]);
    }
    client.close();
  }

  private static String run(InterProcessMutex lock, String command) throws Exception {
    switch (command) {
      case "acquire":
        lock.acquire();
        return "held";
      case "try":
        return lock.acquire(1, TimeUnit.SECONDS) ? "held" : "busy";
      case "release":
        lock.release();
        return "released";
      default:
        throw new IllegalArgumentException(command);
    }
  }
}
