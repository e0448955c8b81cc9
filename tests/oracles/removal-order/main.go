// Command removal-order answers in which order Kubernetes itself would remove the pods of a ReplicaSet.
//
// It reads one ReplicaSet a line from standard input, as JSON, and writes one line for each: the pods in the order in
// which the ReplicaSet controller's own sort puts them, and that sort's answer for every pair. Tests hold what Belay
// predicts against it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/controller"
)

// Pod is what the sort reads of a pod. Times are nanoseconds since 1970; absent is the zero time.
type Pod struct {
	UID             string  `json:"uid"`
	Node            string  `json:"node"`
	Phase           string  `json:"phase"`
	Ready           bool    `json:"ready"`
	ReadySince      *int64  `json:"readySince"`
	Cost            *string `json:"cost"`
	Restarts        int32   `json:"restarts"`
	SidecarRestarts int32   `json:"sidecarRestarts"`
	Created         *int64  `json:"created"`
	Terminating     bool    `json:"terminating"`
}

// Question is a ReplicaSet at one moment.
type Question struct {
	Now  int64 `json:"now"`
	Pods []Pod `json:"pods"`
	// Related are the pods of the other ReplicaSets of the same Deployment.
	Related []Pod `json:"related"`
}

// Answer names pods by their places in the question. Those that are not active are in neither list.
type Answer struct {
	Order []int `json:"order"`
	// Before has a row for each active pod, in the order of the question, and a '1' in it for each active pod that
	// the row's pod is removed before.
	Before []string `json:"before"`
}

func at(nanoseconds *int64) metav1.Time {
	if nanoseconds == nil {
		return metav1.Time{}
	}
	return metav1.NewTime(time.Unix(0, *nanoseconds))
}

func object(pod Pod) *v1.Pod {
	always := v1.ContainerRestartPolicyAlways
	made := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(pod.UID), CreationTimestamp: at(pod.Created)},
		Spec: v1.PodSpec{
			NodeName:       pod.Node,
			InitContainers: []v1.Container{{Name: "sidecar", RestartPolicy: &always}},
		},
		Status: v1.PodStatus{
			Phase:                 v1.PodPhase(pod.Phase),
			ContainerStatuses:     []v1.ContainerStatus{{Name: "main", RestartCount: pod.Restarts}},
			InitContainerStatuses: []v1.ContainerStatus{{Name: "sidecar", RestartCount: pod.SidecarRestarts}},
		},
	}
	if pod.Cost != nil {
		made.Annotations = map[string]string{v1.PodDeletionCost: *pod.Cost}
	}
	if pod.Terminating {
		made.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, 0)}
	}
	status := v1.ConditionFalse
	if pod.Ready {
		status = v1.ConditionTrue
	}
	made.Status.Conditions = []v1.PodCondition{
		{Type: v1.PodReady, Status: status, LastTransitionTime: at(pod.ReadySince)},
	}
	return made
}

func answer(question Question) Answer {
	var pods []*v1.Pod
	places := map[*v1.Pod]int{}
	onNode := map[string]int{}
	for place, pod := range question.Pods {
		made := object(pod)
		if controller.IsPodActive(made) {
			pods = append(pods, made)
			places[made] = place
			onNode[made.Spec.NodeName]++
		}
	}
	for _, pod := range question.Related {
		if made := object(pod); controller.IsPodActive(made) {
			onNode[made.Spec.NodeName]++
		}
	}
	sorted := controller.ActivePodsWithRanks{Now: metav1.NewTime(time.Unix(0, question.Now))}
	for _, pod := range pods {
		sorted.Pods = append(sorted.Pods, pod)
		sorted.Rank = append(sorted.Rank, onNode[pod.Spec.NodeName])
	}
	result := Answer{Order: []int{}, Before: []string{}}
	for row := range pods {
		var before strings.Builder
		for column := range pods {
			if row != column && sorted.Less(row, column) {
				before.WriteByte('1')
			} else {
				before.WriteByte('0')
			}
		}
		result.Before = append(result.Before, before.String())
	}
	sort.Sort(sorted)
	for _, pod := range sorted.Pods {
		result.Order = append(result.Order, places[pod])
	}
	return result
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		var question Question
		if err := json.Unmarshal(lines.Bytes(), &question); err != nil {
			fail(err)
		}
		if err := encoder.Encode(answer(question)); err != nil {
			fail(err)
		}
		if err := out.Flush(); err != nil {
			fail(err)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "removal-order:", err)
	os.Exit(1)
}
