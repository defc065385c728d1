package netns_test

import (
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// podCgroups are the cgroups of a container as kubelet and the runtime make them, by the cgroup driver.
var podCgroups = map[string]string{
	"systemd, burstable": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b5c6d1e_7c1f_4a55_9e0a_3a0f5a2d6b10.slice/" +
		"cri-containerd-4f0d7a.scope",
	"systemd, guaranteed": "kubepods.slice/kubepods-pod6a1d2c3b_0d8e_4b7f_8a55_1c2d3e4f5a6b.slice/crio-9c2b51.scope",
	"systemd, in kind": "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/" +
		"kubelet-kubepods-besteffort-pod2f7a9e10_5d4c_4d1b_b1a2_77c0d9e8f6a5.slice/cri-containerd-e81f3b.scope",
	"cgroupfs, burstable":                  "kubepods/burstable/pod0b5c6d1e-7c1f-4a55-9e0a-3a0f5a2d6b10/4f0d7a",
	"cgroupfs, guaranteed":                 "kubepods/pod6a1d2c3b-0d8e-4b7f-8a55-1c2d3e4f5a6b/9c2b51",
	"below the container's, as of systemd": "kubepods.slice/kubepods-podd1.slice/crio-1.scope/container/init.scope",
	"of no pod":                            "system.slice/sshd.service",
}

// TestPodCgroups: a process is served in whatever cgroup below the served one it is, made before the agent's
// start or after it, and connected UDP sockets there are destroyed with their endpoint.
func TestPodCgroups(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	pods := map[string]*lab.Namespace{}
	add := func(when string) {
		for name, path := range podCgroups {
			pod := h.NewPodIn(when + ".slice/" + path)
			pod.Populate() // sockets are looked for in the namespaces of processes
			pods[name+", made "+when+" the agent's start"] = pod
		}
	}
	add("before")
	a := h.Serve(lab.AgentOptions{ServiceRanges: serviceRanges})
	add("after")
	applyDual(a)
	applyGone(a, 4)
	sockets := map[string]*lab.Socket{}
	for name, pod := range pods {
		sockets[name] = connected(t, pod, "udp4", goneUDP4)
		want(t, pod, "10.96.0.1", "fd96::1", 1, 2, 3)
	}
	applyGone(a, 5)
	for name, s := range sockets {
		wantDestroyed(t, name, s)
		connect(t, s, goneUDP4)
	}
}
