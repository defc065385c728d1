package chart_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/lab"
)

// node runs the agent of a DaemonSet's pod on a host of the lab: with the pod's flags,
// environment, capabilities, ConfigMaps and service account, and with the host's own
// folders where the pod mounts those of a node. A pod of the host has its network namespace
// where the container runtime would have it.
type node struct {
	*lab.Host
	t       *testing.T
	cluster *cluster

	podProcess *lab.Process
}

// secrets is where a pod finds its service account, as a folder below /run.
const secrets = "secrets/kubernetes.io/serviceaccount"

// mounts is run in a mount namespace of its own, with the folders in the environment.
const mounts = `
mount --bind "$BPFFS" /sys/fs/bpf
mount --bind "$CGROUP" /sys/fs/cgroup
mount --bind "$ETC" /etc
mount --bind "$RUN" /run
if test "$NETNS"
then
	mkdir -p "$NETNS"
	touch "$NETNS/pod"
	mount --bind "$POD" "$NETNS/pod"
fi
exec "$@"`

func newNode(c *cluster) *node {
	c.t.Helper()
	lab.Need(c.t, "unshare", "setpriv", "env", "mount")
	n := &node{Host: lab.NewHost(c.t), t: c.t, cluster: c}
	n.ServeBackends()
	n.podProcess = n.Pod.Populate()
	n.Relay(strings.TrimPrefix(c.server.Config.Host, "https://"))
	return n
}

// start starts a container of the pod, without the capabilities in lacks.
func (n *node) start(pod *corev1.PodSpec, c corev1.Container, lacks ...corev1.Capability) *lab.Process {
	n.t.Helper()
	command := []string{"env",
		"BPFFS=" + n.BPFFS, "CGROUP=" + n.Cgroup, "ETC=" + n.etc(pod, c), "RUN=" + n.account(pod),
		"NETNS=" + namespaces(c), fmt.Sprintf("POD=/proc/%d/ns/net", n.podProcess.PID()),
		"unshare", "--mount", "--propagation=private", "sh", "-ec", mounts, "sh", "env", "-i", "PATH=" + os.Getenv("PATH")}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			command = append(command, e.Name+"="+e.Value)
		}
	}
	command = append(command, "setpriv", "--inh-caps=-all", "--bounding-set="+boundingSet(c, lacks), lab.AgentBinary(n.t))
	for _, arg := range c.Args {
		command = append(command, strings.ReplaceAll(arg, "$(NODE_NAME)", lab.NodeName))
	}
	return n.Start(command[0], command[1:]...)
}

// namespaces returns where a container mounts the network namespaces of pods; "" is nowhere.
func namespaces(c corev1.Container) string {
	for _, m := range c.VolumeMounts {
		if m.Name == "network-namespaces" && *m.MountPropagation == corev1.MountPropagationHostToContainer {
			return m.MountPath
		}
	}
	return ""
}

// boundingSet returns a container's capabilities as setpriv takes them.
func boundingSet(c corev1.Container, lacks []corev1.Capability) string {
	set := []string{"-all"}
	for _, capability := range c.SecurityContext.Capabilities.Add {
		if !slices.Contains(lacks, capability) {
			set = append(set, "+"+strings.ToLower(string(capability)))
		}
	}
	return strings.Join(set, ",")
}

// etc returns a folder to be /etc, with the ConfigMaps and Secrets that a container mounts
// there.
func (n *node) etc(pod *corev1.PodSpec, c corev1.Container) string {
	n.t.Helper()
	etc := n.t.TempDir()
	for _, volume := range pod.Volumes {
		files := n.files(volume)
		for _, mount := range c.VolumeMounts {
			if mount.Name == volume.Name && files != nil {
				n.write(filepath.Join(etc, strings.TrimPrefix(mount.MountPath, "/etc/")), files)
			}
		}
	}
	return etc
}

// files returns what is in a volume of a ConfigMap or a Secret; nil is another volume.
func (n *node) files(volume corev1.Volume) map[string]string {
	n.t.Helper()
	switch ctx, get := n.t.Context(), (metav1.GetOptions{}); {
	case volume.ConfigMap != nil:
		m, err := n.cluster.client.CoreV1().ConfigMaps(namespace).Get(ctx, volume.ConfigMap.Name, get)
		if err != nil {
			n.t.Fatal(err)
		}
		return m.Data
	case volume.Secret != nil:
		s, err := n.cluster.client.CoreV1().Secrets(namespace).Get(ctx, volume.Secret.SecretName, get)
		if err != nil {
			n.t.Fatal(err)
		}
		files := make(map[string]string)
		for name, data := range s.Data {
			files[name] = string(data)
		}
		return files
	}
	return nil
}

// account returns a folder to be /run, with what the pod's service account has.
func (n *node) account(pod *corev1.PodSpec) string {
	n.t.Helper()
	run := n.t.TempDir()
	ca, err := os.ReadFile(n.cluster.server.Config.CAFile)
	if err != nil {
		n.t.Fatal(err)
	}
	n.write(filepath.Join(run, secrets), map[string]string{
		"token": n.cluster.token(pod.ServiceAccountName), "ca.crt": string(ca), "namespace": namespace,
	})
	return run
}

func (n *node) write(dir string, files map[string]string) {
	n.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
}

// passes reports whether a probe of the agent succeeds.
func (n *node) passes(p *corev1.Probe) bool {
	response, err := n.HTTPClient().Get("http://127.0.0.1:" + p.HTTPGet.Port.String() + p.HTTPGet.Path)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}
