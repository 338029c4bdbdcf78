// Apache's sticky task assignor of streams groups, asked over standard input and output: a group in, its tasks out.
// A group: a line "members subtopologies standbyReplicas"; a line for each subtopology, "id tasks stateful"; a line for
// each member, "id process active standby offsets". Tasks are "subtopology.partition,..." or "-", offsets
// "subtopology.partition=offset,..." or "-". The answer: a line for each member, "id active standby", tasks sorted.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.coordinator.group.api.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentConfigsImpl;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberMetadataAndStateImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;

public class TaskAssignorJudge {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] counts = line.split(" ");
            Map<String, String[]> parts = new LinkedHashMap<>();
            for (int at = 0; at < Integer.parseInt(counts[1]); at++) {
                String[] words = in.readLine().split(" ");
                parts.put(words[0], words);
            }
            Map<String, MemberMetadataAndStateImpl> members = new HashMap<>(); // as the coordinator makes it
            for (int at = 0; at < Integer.parseInt(counts[0]); at++) {
                String[] words = in.readLine().split(" ");
                members.put(words[0], new MemberMetadataAndStateImpl(
                    Optional.empty(), Optional.empty(), words[1], Map.of(), tasks(words[2]), tasks(words[3]), Map.of(),
                    offsets(words[4]), Map.of()));
            }
            AssignmentConfigsImpl configs = new AssignmentConfigsImpl(Integer.parseInt(counts[2]), List.of());
            Map<String, MemberAssignment> found =
                new StickyTaskAssignor().assign(new GroupSpecImpl(members, configs), describer(parts)).members();
            for (String member : members.keySet()) {
                MemberAssignment given = found.get(member);
                System.out.println(member + " " + shown(given.activeTasks()) + " " + shown(given.standbyTasks()));
            }
            System.out.flush();
        }
    }

    static TopologyDescriber describer(Map<String, String[]> parts) {
        return new TopologyDescriber() {
            @Override public List<String> subtopologies() {
                return new ArrayList<>(parts.keySet());
            }

            @Override public int maxNumInputPartitions(String part) {
                return Integer.parseInt(parts.get(part)[1]);
            }

            @Override public boolean isStateful(String part) {
                return parts.get(part)[2].equals("true");
            }
        };
    }

    static Map<String, Set<Integer>> tasks(String text) {
        Map<String, Set<Integer>> tasks = new HashMap<>();
        for (String task : text.equals("-") ? new String[0] : text.split(",")) {
            String[] words = task.split("\\.");
            tasks.computeIfAbsent(words[0], part -> new HashSet<>()).add(Integer.parseInt(words[1]));
        }
        return tasks;
    }

    static Map<String, Map<Integer, Long>> offsets(String text) {
        Map<String, Map<Integer, Long>> offsets = new HashMap<>();
        for (String each : text.equals("-") ? new String[0] : text.split(",")) {
            String[] words = each.split("[.=]");
            offsets.computeIfAbsent(words[0], part -> new HashMap<>())
                .put(Integer.parseInt(words[1]), Long.parseLong(words[2]));
        }
        return offsets;
    }

    static String shown(Map<String, Set<Integer>> tasks) {
        List<String> all = new ArrayList<>();
        tasks.forEach((part, numbers) -> numbers.forEach(number -> all.add(part + "." + number)));
        Collections.sort(all);
        return all.isEmpty() ? "-" : String.join(",", all);
    }
}
