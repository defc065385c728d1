package cli_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

// node adds a Node.
func (s *apiServer) node(name string, labels map[string]string) {
	s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

// daemonSet adds a DaemonSet whose pods are agents of nodes with Linux, and of those that affinity is for.
func (s *apiServer) daemonSet(name string, affinity *corev1.Affinity) {
	set := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	set.Spec.Template.Labels = agentLabels
	set.Spec.Template.Spec = corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelOSStable: "linux"}, Affinity: affinity}
	s.sets = append(s.sets, set)
}

// required is an affinity to nodes by one term.
func required(term corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}},
	}}
}

// newMissing returns a cluster where node-a has an agent, node-b has none, node-c has one that the
// scheduler has no place for, and the other nodes are to have none.
func newMissing(t *testing.T) *apiServer {
	s := newAPIServer(t)
	const nothing = `{"findings": []}`
	s.agent("node-a", prints(nothing, cli.ExitOK))
	s.add(corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "beeline-of-c", Labels: agentLabels},
		Spec: corev1.PodSpec{Affinity: required(corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-c"}}},
		})},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/5 nodes are available",
		}}},
	}, nil)
	for _, name := range []string{"node-a", "node-b", "node-c"} {
		s.node(name, map[string]string{corev1.LabelOSStable: "linux"})
	}
	s.node("windows", map[string]string{corev1.LabelOSStable: "windows"})
	s.node("virtual", map[string]string{corev1.LabelOSStable: "linux", "type": "virtual-kubelet"})
	s.daemonSet("beeline", required(corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}}},
	}))
	return s
}

// TestPluginMissing: a node that is to have an agent and has none is named, and no other.
func TestPluginMissing(t *testing.T) {
	s := newMissing(t)
	for _, args := range []string{"verify", "verify --node node-a", "verify --node node-b", "verify --node node-c"} {
		t.Run(args, func(t *testing.T) { comparePluginAs(t, "plugin_missing", s, args) })
	}
	for _, args := range []string{"status", "top", "monitor"} {
		_, errs, code := s.run(args)
		if code != cli.ExitFailure || strings.Count(errs, "node-b: no agent's pod is there") != 1 || !strings.Contains(errs, "node-b,node-c\n") {
			t.Errorf("%s: exit code %d, said %q", args, code, errs)
		}
	}
	s.daemonSet("for-virtual-nodes", nil)
	if _, errs, _ := s.run("status"); !strings.Contains(errs, "virtual: no agent's pod is there") || strings.Contains(errs, "windows") {
		t.Errorf("with a second DaemonSet: said %q", errs)
	}
	s.sets = nil
	if _, errs, _ := s.run("status"); strings.Contains(errs, "node-b") {
		t.Errorf("without a DaemonSet: said %q", errs)
	}
}

// TestPluginMissingForbidden: who may not list nodes, or DaemonSets, is told once that nodes without an
// agent are not named.
func TestPluginMissingForbidden(t *testing.T) {
	s := newMissing(t)
	delete(s.pods, "kube-system/beeline-of-c")
	for _, resource := range []string{"nodes", "daemonsets"} {
		s.forbidden = resource
		comparePluginAs(t, "plugin_forbidden_"+resource, s, "verify")
	}
}
