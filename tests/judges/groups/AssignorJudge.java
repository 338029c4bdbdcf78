// Asks Apache's assignors of consumer groups for target assignments. A group comes in lines on standard input:
//   uniform|range HOMOGENEOUS|HETEROGENEOUS number-of-topics number-of-members
//   topic-id partitions                                            a line for each topic
//   member-id instance-id|- topic,topic... topic=p,p;topic=p,p...  a line for each member; topics by number, "-" none
// and a line for each member goes out: member-id topic=p,p;topic=p,p...
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.*;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

public class AssignorJudge {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            judge(line.split(" "), in, out);
        }
        out.flush();
    }

    private static void judge(String[] head, BufferedReader in, PrintStream out) throws Exception {
        List<Uuid> topics = new ArrayList<>();
        Map<Uuid, Integer> counts = new HashMap<>();
        for (int i = 0; i < Integer.parseInt(head[2]); i++) {
            String[] words = in.readLine().split(" ");
            topics.add(Uuid.fromString(words[0]));
            counts.put(topics.get(i), Integer.parseInt(words[1]));
        }
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        List<String> order = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(head[3]); i++) {
            String[] words = in.readLine().split(" ");
            Map<Uuid, Set<Integer>> assigned = new HashMap<>();
            for (String each : words[3].equals("-") ? new String[0] : words[3].split(";")) {
                Uuid topic = topics.get(Integer.parseInt(each.split("=")[0]));
                for (String partition : each.split("=")[1].split(",")) {
                    assigned.putIfAbsent(topic, new HashSet<>());  // computeIfAbsent would put it before others
                    assigned.get(topic).add(Integer.parseInt(partition));
                    inverted.putIfAbsent(topic, new HashMap<>());
                    inverted.get(topic).put(Integer.parseInt(partition), words[0]);
                }
            }
            Set<Uuid> subscribed = new HashSet<>();
            for (String each : words[2].equals("-") ? new String[0] : words[2].split(",")) {
                subscribed.add(topics.get(Integer.parseInt(each)));
            }
            Optional<String> instance = words[1].equals("-") ? Optional.empty() : Optional.of(words[1]);
            members.put(words[0], new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), instance, subscribed, new Assignment(Collections.unmodifiableMap(assigned))));
            order.add(words[0]);
        }
        ConsumerGroupPartitionAssignor assignor = head[0].equals("range") ? new RangeAssignor() : new UniformAssignor();
        GroupAssignment found = assignor.assign(
            new GroupSpecImpl(members, SubscriptionType.valueOf(head[1]), inverted),
            new SubscribedTopicDescriber() {
                public int numPartitions(Uuid topic) { return counts.get(topic); }
                public Set<String> racksForPartition(Uuid topic, int partition) { return Set.of(); }
            });
        for (String member : order) {
            MemberAssignment assignment = found.members().get(member);
            StringJoiner parts = new StringJoiner(";");
            for (int i = 0; i < topics.size(); i++) {
                Set<Integer> has = assignment == null ? null : assignment.partitions().get(topics.get(i));
                if (has == null || has.isEmpty()) continue;
                StringJoiner numbers = new StringJoiner(",");
                new TreeSet<>(has).forEach(each -> numbers.add(each.toString()));
                parts.add(i + "=" + numbers);
            }
            out.println(member + " " + parts);
        }
    }
}
