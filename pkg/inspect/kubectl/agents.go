package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Agent is the pod of an agent.
type Agent struct {
	Node string
	Pod  string // its name; "" where the node has none
	// Down says why nothing can be run in the pod, nil when it runs.
	Down error
	// Args are those that the agent is started with.
	Args []string

	container string
}

// Agents returns the agents, ordered by node. Of the nodes named, or else of all that have an
// agent's pod, each is there once; it is down where it has no such pod. [Cluster.Missing] returns
// the nodes that have none.
func (c *Cluster) Agents(ctx context.Context, nodes []string) ([]Agent, error) {
	pods, err := c.agentPods(ctx, nodes)
	if err != nil {
		return nil, err
	}
	byNode := make(map[string]*corev1.Pod)
	for i := range pods {
		node := nodeOf(&pods[i])
		if len(nodes) > 0 && !slices.Contains(nodes, node) {
			continue
		}
		if before := byNode[node]; before == nil || life(&pods[i]) > life(before) {
			byNode[node] = &pods[i]
		}
	}
	var agents []Agent
	for _, pod := range byNode {
		agents = append(agents, agentOf(pod))
	}
	for _, node := range nodes {
		if byNode[node] == nil {
			byNode[node] = new(corev1.Pod)
			agents = append(agents, c.noAgent(node))
		}
	}
	slices.SortFunc(agents, ByNode)
	return agents, nil
}

// ByNode orders agents by the names of their nodes.
func ByNode(a, b Agent) int { return cmp.Compare(a.Node, b.Node) }

// noAgent is the agent of a node that has no agent's pod.
func (c *Cluster) noAgent(node string) Agent {
	return Agent{Node: node, Down: fmt.Errorf("no agent's pod is there, in namespace %s with the labels %s", c.options.Namespace, c.options.Selector)}
}

// agentPods lists the agents' pods; where one node is named, those of it, or else those of no node yet.
func (c *Cluster) agentPods(ctx context.Context, nodes []string) ([]corev1.Pod, error) {
	if len(nodes) != 1 {
		return c.listAgentPods(ctx, "")
	}
	pods, err := c.listAgentPods(ctx, "spec.nodeName="+nodes[0])
	if err == nil && len(pods) == 0 {
		pods, err = c.listAgentPods(ctx, "spec.nodeName=")
	}
	return pods, err
}

func (c *Cluster) listAgentPods(ctx context.Context, fields string) (pods []corev1.Pod, err error) {
	err = inPages(metav1.ListOptions{LabelSelector: c.options.Selector, FieldSelector: fields}, func(o metav1.ListOptions) (string, error) {
		page := new(corev1.PodList)
		err := c.core.Get().Namespace(c.options.Namespace).Resource("pods").VersionedParams(&o, c.parameters).Do(ctx).Into(page)
		pods = append(pods, page.Items...)
		return page.Continue, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	return pods, nil
}

// nodeOf returns the node of a pod; of one that is on none yet, the node that its DaemonSet has made
// it for, or else the pod's name.
func nodeOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Spec.NodeName, madeFor(pod.Spec.Affinity), "pod "+pod.Name)
}

// madeFor returns the node that a DaemonSet's controller has made a pod for: it leaves it to the
// scheduler to put it there. "" stands for none.
func madeFor(affinity *corev1.Affinity) string {
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// life orders the pods of a node: one that stays and runs is more than one that does not.
func life(pod *corev1.Pod) (n int) {
	if pod.DeletionTimestamp == nil {
		n += 2
	}
	if pod.Status.Phase == corev1.PodRunning {
		n++
	}
	return n
}

func agentOf(pod *corev1.Pod) Agent {
	a := Agent{Node: nodeOf(pod), Pod: pod.Name}
	if len(pod.Spec.Containers) > 0 {
		a.container, a.Args = pod.Spec.Containers[0].Name, pod.Spec.Containers[0].Args
	}
	if pod.Status.Phase != corev1.PodRunning || stopped(pod) {
		a.Down = fmt.Errorf("pod %s does not run: %s", pod.Name, strings.Join(reasons(pod), ": "))
	}
	return a
}

// stopped reports whether the agent's container waits to be started, or has ended.
func stopped(pod *corev1.Pod) bool {
	return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Running == nil
}

// reasons says in what state a pod is, and why.
func reasons(pod *corev1.Pod) []string {
	say := []string{string(pod.Status.Phase), pod.Status.Reason, pod.Status.Message}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing":
			say = append(say, s.State.Waiting.Reason, s.State.Waiting.Message)
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			say = append(say, s.State.Terminated.Reason, s.State.Terminated.Message)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			say = append(say, condition.Reason, condition.Message)
		}
	}
	return slices.DeleteFunc(say, func(s string) bool { return s == "" })
}
