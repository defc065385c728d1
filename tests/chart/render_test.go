package chart_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// matrix are values that each part of the chart is rendered with; all of them are also
// shown to a real API server (see TestAPIServerAcceptsTheMatrix).
var matrix = map[string]string{
	"defaults":      "",
	"digest":        "image: {digest: 'sha256:" + strings.Repeat("0", 64) + "', tag: x}\nimagePullSecrets: [{name: registry}]",
	"names":         "nameOverride: proxy\nfullnameOverride: bee",
	"privileged":    "privileged: true",
	"rights":        "capabilities: [BPF, NET_ADMIN]\nseccompProfile: {type: Unconfined}\nappArmorProfile: {type: RuntimeDefault}\nseLinuxOptions: null",
	"configuration": "config: {devices: [eth*], tables: {maxFlows: 1024}}\nkubeProxyConfig: {clusterCIDR: 10.0.0.0/8, conntrack: {min: 1}}\nextraArgs: [--v=4]",
	"kube-proxy's":  "existingKubeProxyConfigMap: {name: kube-proxy}",
	"take over":     "cleanupKubeProxy: true",
	"take down":     "cleanup: true\ncleanupKubeProxy: true",
	"places":        "cgroupRoot: /run/cgroup2\nbpffs: {path: /run/bpf}",
	"hybrid":        "cgroupRoot: /sys/fs/cgroup/unified",
	"addresses":     "healthz: {address: 'fd00::1', port: 20256}\nmetrics: {address: 'fd00::1', port: 20249}",
	"account":       "serviceAccount: {create: false, name: other}\nrbac: {create: false}",
	"no namespaces": "networkNamespaces: {path: ''}",
	"placement":     "tolerations: []\nnodeSelector: {a: b}\naffinity: {nodeAffinity: {}}\npriorityClassName: system-cluster-critical\npodLabels: {c: d}\npodAnnotations: {e: f}\nresources: {limits: {memory: 1Gi}}\nupdateStrategy: {maxUnavailable: 3}",
	"monitoring":    "metrics: {podMonitor: {enabled: true, interval: 30s, labels: {a: b}}, serviceMonitor: {enabled: true}, alerts: {enabled: true, labels: {a: b}}}\ndashboard: {enabled: true, annotations: {folder: network}}",
}

// TestMatrix decodes all that the chart makes of each set of values, and looks at what
// must hold for all of them.
func TestMatrix(t *testing.T) {
	t.Parallel()
	h := newHelm(t, "")
	for name, yaml := range matrix {
		t.Run(name, func(t *testing.T) {
			rendered, err := h.template(onNode + yaml)
			if err != nil {
				t.Fatal(err)
			}
			set := daemonSet(t, decode(t, rendered))
			checkOneAgentPerNode(t, set)
			for _, c := range slices.Concat(set.Spec.Template.Spec.InitContainers, set.Spec.Template.Spec.Containers) {
				checkMounts(t, &set.Spec.Template.Spec, c)
			}
		})
	}
}

// checkOneAgentPerNode: an update never starts a pod beside the one that it replaces.
func checkOneAgentPerNode(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	u := set.Spec.UpdateStrategy
	if u.Type != appsv1.RollingUpdateDaemonSetStrategyType || u.RollingUpdate.MaxSurge == nil || *u.RollingUpdate.MaxSurge != intstr.FromInt32(0) {
		t.Errorf("the update strategy is %+v, want a rolling one without surge", u)
	}
	for key, value := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Labels[key] != value {
			t.Errorf("the pods' label %s is %q, the selector wants %q", key, set.Spec.Template.Labels[key], value)
		}
	}
}

// checkMounts: each mount has its volume.
func checkMounts(t *testing.T, spec *corev1.PodSpec, c corev1.Container) {
	t.Helper()
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("container %s mounts volume %s, which the pod lacks", c.Name, m.Name)
		}
	}
}

// render renders values and returns the pod.
func render(t *testing.T, yaml string) *corev1.PodSpec {
	t.Helper()
	rendered, err := newHelm(t, "").template(onNode + yaml)
	if err != nil {
		t.Fatal(err)
	}
	return &daemonSet(t, decode(t, rendered)).Spec.Template.Spec
}

// TestEveryNode: nothing but the operating system keeps a pod off a node, and it goes
// first when a node has too little for all.
func TestEveryNode(t *testing.T) {
	t.Parallel()
	pod := render(t, "")
	if got := fmt.Sprint(pod.Tolerations); got != fmt.Sprint([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}) {
		t.Errorf("tolerations are %s, want all taints", got)
	}
	if len(pod.NodeSelector) != 1 || pod.NodeSelector[corev1.LabelOSStable] != "linux" {
		t.Errorf("node selector is %v", pod.NodeSelector)
	}
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSDefault || pod.PriorityClassName != "system-node-critical" {
		t.Errorf("hostNetwork %t, dnsPolicy %s, priority class %s", pod.HostNetwork, pod.DNSPolicy, pod.PriorityClassName)
	}
}

// TestProbes: /livez alone decides about restarts, for /healthz fails by intention on a
// node that is about to be deleted.
func TestProbes(t *testing.T) {
	t.Parallel()
	agent := render(t, "").Containers[0]
	for want, probe := range map[string]*corev1.Probe{
		"/livez at start":  agent.StartupProbe,
		"/livez while up":  agent.LivenessProbe,
		"/healthz, served": agent.ReadinessProbe,
	} {
		if path, _, _ := strings.Cut(want, " "); probe.HTTPGet.Path != strings.TrimSuffix(path, ",") || probe.HTTPGet.Port.IntVal != 10256 {
			t.Errorf("want %s, the probe asks %+v", want, probe.HTTPGet)
		}
	}
	agent = render(t, "healthz: {address: 'fd00::1', port: 20256}").Containers[0]
	if get := agent.LivenessProbe.HTTPGet; get.Host != "fd00::1" || get.Port.IntVal != 20256 {
		t.Errorf("the probe asks %+v", get)
	}
	if !slices.Contains(agent.Args, "--healthz-bind-address=[fd00::1]:20256") {
		t.Errorf("flags are %q", agent.Args)
	}
}

// TestConfigChangeRolls: another configuration is another pod template, and so is
// nothing else than that.
func TestConfigChangeRolls(t *testing.T) {
	t.Parallel()
	h := newHelm(t, "")
	sum := func(yaml string) string {
		t.Helper()
		rendered, err := h.template(onNode + yaml)
		if err != nil {
			t.Fatal(err)
		}
		return daemonSet(t, decode(t, rendered)).Spec.Template.Annotations["checksum/config"]
	}
	none := sum("")
	if again := sum("metrics: {alerts: {enabled: true}}"); again != none || none == "" {
		t.Errorf("the checksum is %q, then %q with the same configuration", none, again)
	}
	seen := map[string]string{none: ""}
	for _, yaml := range []string{
		"config: {devices: [eth0]}", "config: {devices: [eth1]}",
		"kubeProxyConfig: {clusterCIDR: 10.0.0.0/8}",
	} {
		got := sum(yaml)
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q have the same checksum", yaml, other)
		}
		seen[got] = yaml
	}
}
