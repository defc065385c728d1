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
	"tunnel":        "config: {forwardingMode: hybrid}",
	"own secret":    "config: {allowedAnnotations: [service.beeline.io/forwarding-mode]}\ndsr: {existingSecret: {name: shared, key: mine}}",
	"kube-proxy's":  "existingKubeProxyConfigMap: {name: kube-proxy}",
	"take over":     "cleanupKubeProxy: true",
	"take down":     "cleanup: true\ncleanupKubeProxy: true",
	"places":        "cgroupRoot: /run/cgroup2\nbpffs: {path: /run/bpf}",
	"hybrid":        "cgroupRoot: /sys/fs/cgroup/unified",
	"addresses":     "healthz: {address: 'fd00::1', port: 20256}\nmetrics: {address: 'fd00::1', port: 20249}",
	"account":       "serviceAccount: {create: false, name: other}\nrbac: {create: false}",
	"own bpffs":     "bpffs: {autoMount: false}",
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

// TestMountedForTheNode: a BPF file system that a pod mounts has to reach the node, or all
// that is pinned would end with the pod. The API server allows that to privileged
// containers only, and the agent's is none.
func TestMountedForTheNode(t *testing.T) {
	t.Parallel()
	pod := render(t, "cleanupKubeProxy: true")
	first := pod.InitContainers[0]
	if first.Name != "init" || !slices.Contains(first.Args, "--init-only") || !slices.Contains(first.Args, "--bpffs=/sys/fs/bpf") {
		t.Errorf("the first container is %s %q", first.Name, first.Args)
	}
	if p := first.SecurityContext.Privileged; p == nil || !*p {
		t.Error("the container that mounts is not privileged")
	}
	if m := first.VolumeMounts[0]; m.MountPath != "/sys/fs/bpf" || m.MountPropagation == nil || *m.MountPropagation != corev1.MountPropagationBidirectional {
		t.Errorf("it mounts for itself: %+v", m)
	}
	for _, c := range append(pod.Containers, initContainer(t, pod, "cleanup-kube-proxy"), first) {
		if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
			t.Errorf("the status of container %s does not say why it fails", c.Name)
		}
		if p := c.SecurityContext.Privileged; c.Name != first.Name && p != nil && *p {
			t.Errorf("container %s is privileged", c.Name)
		}
	}
	for _, yaml := range []string{"bpffs: {autoMount: false}", "cleanup: true", "drain: true"} {
		pod := render(t, yaml)
		if slices.ContainsFunc(pod.InitContainers, func(c corev1.Container) bool { return c.Name == "init" }) {
			t.Errorf("%s: a privileged container mounts a BPF file system", yaml)
		}
	}
}

// TestCleanupLetsStart: what of kube-proxy cannot be removed does not keep the agent down.
func TestCleanupLetsStart(t *testing.T) {
	t.Parallel()
	if args := initContainer(t, render(t, "cleanupKubeProxy: true"), "cleanup-kube-proxy").Args; !slices.Contains(args, "--best-effort") {
		t.Errorf("flags are %q", args)
	}
}

// TestProbes: /livez decides about restarts, for /healthz fails by intention on a node that
// is about to be deleted; until the agent has listed everything it has an hour.
func TestProbes(t *testing.T) {
	t.Parallel()
	agent := render(t, "").Containers[0]
	for want, probe := range map[string]*corev1.Probe{
		"/startupz at start": agent.StartupProbe,
		"/livez while up":    agent.LivenessProbe,
		"/healthz, served":   agent.ReadinessProbe,
	} {
		if path, _, _ := strings.Cut(want, " "); probe.HTTPGet.Path != strings.TrimSuffix(path, ",") || probe.HTTPGet.Port.IntVal != 10256 {
			t.Errorf("want %s, the probe asks %+v", want, probe.HTTPGet)
		}
	}
	if p := agent.StartupProbe; p.FailureThreshold*p.PeriodSeconds != 3600 {
		t.Errorf("the agent has %d s to start", p.FailureThreshold*p.PeriodSeconds)
	}
	agent = render(t, "healthz: {address: 'fd00::1', port: 20256}").Containers[0]
	if get := agent.LivenessProbe.HTTPGet; get.Host != "fd00::1" || get.Port.IntVal != 20256 {
		t.Errorf("the probe asks %+v", get)
	}
	if !slices.Contains(agent.Args, "--healthz-bind-address=[fd00::1]:20256") {
		t.Errorf("flags are %q", agent.Args)
	}
}

// TestTakesDown: cleanup comes before drain, for it is what cuts a drain whose connections do not end.
func TestTakesDown(t *testing.T) {
	t.Parallel()
	for yaml, want := range map[string]string{
		"cleanup: true":              "--cleanup",
		"drain: true":                "--drain",
		"drain: true\ncleanup: true": "--cleanup",
	} {
		if args := initContainer(t, render(t, yaml), "cleanup").Args; args[0] != want {
			t.Errorf("%q: flags are %q, want %s first", yaml, args, want)
		}
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

// TestTunnelSecret: where packets may go in a tunnel, agents have a secret that is the same on
// all nodes: one that the chart makes, or that of the administrator.
func TestTunnelSecret(t *testing.T) {
	t.Parallel()
	h := newHelm(t, "")
	for yaml, want := range map[string]struct{ made, mounted, key string }{
		"":                                      {},
		"config: {forwardingMode: snat}":        {},
		"config: {forwardingMode: dsr}":         {"beeline-dsr", "beeline-dsr", "secrets"},
		"extraArgs: [--forwarding-mode=hybrid]": {"beeline-dsr", "beeline-dsr", "secrets"},
		"config: {forwardingMode: dsr}\ndsr: {existingSecret: {name: shared, key: mine}}": {"", "shared", "mine"},
		"config: {allowedAnnotations: [service.beeline.io/forwarding-mode]}":              {"beeline-dsr", "beeline-dsr", "secrets"},
	} {
		rendered, err := h.template(onNode + yaml)
		if err != nil {
			t.Fatal(err)
		}
		objects := decode(t, rendered)
		made := ""
		for _, o := range objects {
			if s, ok := o.(*corev1.Secret); ok {
				made = s.Name
				if got := len(s.Data[want.key]); got < 32 {
					t.Errorf("%q: the secret has %d bytes", yaml, got)
				}
			}
		}
		pod := daemonSet(t, objects).Spec.Template.Spec
		mounted := ""
		for _, v := range pod.Volumes {
			if v.Secret != nil {
				mounted = v.Secret.SecretName
			}
		}
		flag := slices.Contains(pod.Containers[0].Args, "--dsr-secret-file=/etc/beeline-dsr/"+want.key)
		if made != want.made || mounted != want.mounted || flag != (want.mounted != "") {
			t.Errorf("%q: the chart makes %q and mounts %q, flags are %q", yaml, made, mounted, pod.Containers[0].Args)
		}
		checkMounts(t, &pod, pod.Containers[0])
	}
}
