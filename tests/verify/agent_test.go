package verify_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/verify"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/servicetest"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestMended: the agent that runs attaches again what is detached, and writes again what is changed.
func TestMended(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--devices", "up*", "--xdp", "generic")
	ifindex := n.uplink(t)
	for _, pin := range []string{
		"link_bl_connect4", fmt.Sprintf("link_tcx_%d_ingress", ifindex), fmt.Sprintf("link_xdp_%d", ifindex),
	} {
		n.detach(t, pin)
	}
	check(t, os.Remove(n.pin("link_bl_sendmsg6")))
	check(t, os.Remove(n.pin(fmt.Sprintf("link_tcx_%d_egress", ifindex))))
	lab.Eventually(t, "the programs run again", func() bool {
		problems := 0
		check(t, n.Host.Run(func() error {
			maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
			if err != nil {
				return err
			}
			defer maps.Close()
			list, err := datapath.Problems(n.BPFFS, maps, datapath.Options{
				BPFFS: n.BPFFS, Cgroup: n.Cgroup, Devices: []string{"up*"}, XDP: datapath.XDPGeneric,
			})
			problems = len(list)
			return err
		}))
		return problems == 0
	})
	lab.Eventually(t, "the log tells", func() bool {
		return contains(n.Standalone.Output(), "bl_connect4", "bl_sendmsg6", "A device has lost programs or entries")
	})
	n.counted(t, "programs")
}

// counted waits until the agent's metrics say that its checks have found something in a part.
func (n *node) counted(t *testing.T, part string) {
	t.Helper()
	series := regexp.MustCompile(fmt.Sprintf(`(?m)^beeline_verify_findings_total\{part="%s"\} [1-9]`, part))
	lab.Eventually(t, "findings of "+part+" are counted", func() bool {
		page, err := n.Get("http://127.0.0.1:10249/metrics")
		return err == nil && series.MatchString(page)
	})
}

// TestMachineFollowed: the agent that runs tells by metrics and log what the machine lacks, and when it has
// it again.
func TestMachineFollowed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "beeline.yaml")
	const config = "apiVersion: config.beeline.io/v1alpha1\nkind: BeelineConfiguration\n"
	check(t, os.WriteFile(file, []byte(config), 0o600))
	n := newNode(t, "--devices", "up*,side", "--config", file)
	n.wantOfMachine(t, nil)
	check(t, os.WriteFile(file, []byte(config+"xdp: auto\n"), 0o600))
	n.AddDevice("side", n.Outside, "side-peer")
	n.AddAddr("side", "198.51.100.1/24")
	n.SetSysctl("ipv4/conf/side/rp_filter", "1")
	n.SetSysctl("ipv4/conf/uplink/forwarding", "0")
	n.SetSysctl("ipv6/conf/all/forwarding", "0")
	remove := n.leaveTable(t)
	n.wantOfMachine(t, map[string]int{"rp-filter": 1, "forwarding": 2, "kube-proxy": 1, "config-file": 1})
	if log := n.Standalone.Output(); !contains(log, `kind="rp-filter" what="rp_filter of device side`, file+" is not what", "net.ipv4.conf.uplink.forwarding is 0",
		"net.ipv6.conf.all.forwarding is 0", "table ip kube-proxy", `why="`, `fix="`) {
		t.Errorf("the log does not tell all:\n%s", log)
	}
	n.SetSysctl("ipv4/conf/side/rp_filter", "2")
	n.SetSysctl("ipv4/conf/uplink/forwarding", "1")
	n.SetSysctl("ipv6/conf/all/forwarding", "1")
	remove()
	check(t, os.WriteFile(file, []byte(config), 0o600))
	n.wantOfMachine(t, nil)
	if log := n.Standalone.Output(); strings.Count(log, "The machine is not set up as Beeline needs it") != 5 || strings.Count(log, "The machine is set up as Beeline needs it again") != 5 {
		t.Errorf("the log does not have each of five findings come and go once:\n%s", log)
	}
}

// wantOfMachine waits until the agent's metrics have so many findings of each kind, and none of others.
func (n *node) wantOfMachine(t *testing.T, findings map[string]int) {
	t.Helper()
	want := ""
	for _, kind := range slices.Sorted(slices.Values(verify.MachineKinds)) {
		want += fmt.Sprintf("beeline_verify_machine_findings{kind=%q} %d\n", kind, findings[kind])
	}
	lab.Eventually(t, fmt.Sprintf("findings of the machine are %v", findings), func() bool {
		page, err := n.Get("http://127.0.0.1:10249/metrics")
		return err == nil && strings.Contains(page, want)
	})
}

// TestMendedTables: an entry that somebody changes is as before after a look of the agent, whichever it is.
func TestMendedTables(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	reader, err := bpfmap.Open(datapath.Dir(n.BPFFS))
	check(t, err)
	t.Cleanup(func() { check(t, reader.Close()) })
	have, err := servicemap.New(reader).Snapshot()
	check(t, err)
	// As a stranger writes, who has the maps open beside the agent.
	m := n.maps()
	k := &kernel{m, servicetest.Open(t, m), t, have}
	check(t, bpfmap.Remove(k.BlFrontend, rawKey(key("10.96.0.1:80", model.TCP))))
	k.changeRaw("10.96.0.2", changeKind)
	k.changeRaw("10.96.0.4", changeDigest)
	clear(k.Entries.Filter.Word[:])
	extra := rawKey(key("10.96.0.99:80", model.TCP))
	entry := rawEntry()
	check(t, bpfmap.Put(k.BlFrontend, extra, &entry))
	set := have.Services[k.id("web", "web")].Cluster
	check(t, k.PutSlots(set.First, []uint32{4000}))
	ring := have.Services[k.id("ring", "")]
	id, b := k.backend(k.id("web", "dns"), 1)
	b.Weight = 99
	check(t, k.PutBackend(id, b))
	ring.AffinitySeconds++
	check(t, k.PutService(k.id("ring", ""), ring))
	k.removeEndpoints()
	check(t, k.DeleteNodeAddr(lab.Node4))
	check(t, k.DeleteServiceCIDR(prefix("10.96.0.0/16")))
	k.Entries.Aggregate.Mask4 = 0
	lab.Eventually(t, "the agent has told of what it has written again", func() bool {
		return contains(n.Standalone.Output(), "An entry of the tables was changed by another program", "More entries")
	})
	lab.Eventually(t, "nothing is found", func() bool {
		r := n.check(t, time.Millisecond)
		return len(r.Findings)+len(r.Unchecked)+len(r.Unsettled) == 0
	})
	n.counted(t, "tables")
}

// TestMendedEntries: what somebody changes of devices, pods, the tunnel and the machine's ports is as before after
// the agent's next look, too.
func TestMendedEntries(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--devices", "up*", "--xdp", "generic", "--forwarding-mode", "dsr", "--node-ip", lab.Node4.String(), "--cluster-cidr", "10.244.0.0/16")
	uplink := n.uplink(t)
	reader, err := bpfmap.Open(datapath.Dir(n.BPFFS))
	check(t, err)
	t.Cleanup(func() { check(t, reader.Close()) })
	m := n.maps() // as a stranger writes, who has the maps open beside the agent
	devices, nodes := devicemap.New(reader), &m.Entries.Node
	list, err := devices.Present()
	check(t, err)
	id := list[0].ID
	list[0].XDPSend = !list[0].XDPSend
	entries := []struct {
		name   string
		read   func() (any, error)
		change func() error
	}{
		{"range of pods", func() (any, error) { return devices.LocalCIDRs() }, func() error {
			_, err := devicemap.New(m).SetLocalCIDRs([]netip.Prefix{prefix("203.0.113.0/24")})
			return err
		}},
		{"frames of VLANs", func() (any, error) { return devices.Frames() }, func() error {
			return devicemap.New(m).SetFrames(map[devicemap.Frames]uint32{{Ifindex: uplink, Tags: devicemap.Tags{{Protocol: 0x8100, ID: 5}}}: id})
		}},
		{"MAC addresses", func() (any, error) { return devices.MACs() }, func() error {
			return devicemap.New(m).SetMACs(map[int]devicemap.MAC{uplink + 1: {2}})
		}},
		{"devices", func() (any, error) { return devices.Present() }, func() error {
			return errors.Join(devicemap.New(m).Put(list[0]), devicemap.New(m).Put(devicemap.Device{ID: 99, Ifindex: 1, Name: "lo"}))
		}},
		{"index of a device", func() (any, error) {
			ids := make(map[uint32]uint32)
			return ids, bpfmap.Each(reader.BlDeviceId, func(ifindex, id *uint32) { ids[*ifindex] = *id })
		}, func() error {
			return errors.Join(bpfmap.Put(m.BlDeviceId, uint32(uplink), uint32(100)), bpfmap.Put(m.BlDeviceId, uint32(4711), id))
		}},
		{"masqueraded packets", func() (any, error) {
			addr4, addr6, err := devices.Masquerade()
			return [2]netip.Addr{addr4, addr6}, err
		}, func() error { return devicemap.New(m).SetMasquerade(lab.Node4, netip.Addr{}) }},
		{"namespaces that translate", func() (any, error) { return devices.NAT() }, func() error { return devicemap.New(m).PutNAT(4711, []int{uplink}) }},
		{"devices of sandboxes", func() (any, error) { return devicemap.NewSandboxes(reader).List() }, func() error { return devicemap.NewSandboxes(m).Add(uplink) }},
		{"source ports", func() (any, error) { return reader.SourcePorts(), nil }, func() error {
			m.SetSourcePorts(bpfmap.SourcePorts{LocalMin: 1, LocalMax: 2})
			return nil
		}},
		{"marks of the tunnel", func() (any, error) { return *reader.Entries.Secret, nil }, func() error {
			nodemap.New(m).SetMarks([8]byte{7}, [8]byte{7}, [8]byte{8})
			return nil
		}},
		{"this node", func() (any, error) { return reader.Entries.Node[0], nil }, func() error {
			(*nodes)[0].Store(0, 77)
			return nil
		}},
		{"share of a network", func() (any, error) { return reader.Entries.SourceShare.Most, nil }, func() error {
			m.Entries.SourceShare.Most = 1
			return nil
		}},
	}
	before := make([]any, len(entries))
	for i, e := range entries {
		before[i], err = e.read()
		check(t, err)
	}
	for _, e := range entries {
		check(t, e.change())
	}
	var others []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("not as before: %q", others)
		}
	})
	lab.Eventually(t, "all is as before", func() bool {
		others = nil
		for i, e := range entries {
			if now, err := e.read(); err != nil || !reflect.DeepEqual(now, before[i]) {
				others = append(others, e.name)
			}
		}
		return len(others) == 0
	})
	n.counted(t, "tables")
	n.counted(t, "programs")
	n.wantNothing(t, "once all is as before")
}

// TestChurn: while endpoints and Services change all the time and an agent follows, nothing is
// found.
func TestChurn(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--devices", "up*")
	n.churn(t, func(_ context.Context, i int) error {
		count := 1 + i%3
		web := lab.Slice("web", "web:8080/TCP,dns:8080/UDP", lab.Backend4(1), lab.Backend4(1+count))
		n.Write("first.yaml", slices.Concat(manifests[:1], []string{web}, manifests[2:])...)
		n.Write(fmt.Sprintf("more-%d.yaml", i%5), lab.Service(fmt.Sprintf("more-%d", i%5),
			fmt.Sprintf(`{clusterIP: 10.96.1.%d, ports: [{port: %d}]}`, i%5, 80+i%2)), lab.Slice(fmt.Sprintf("more-%d", i%5), "8080/TCP", lab.Backend4(count)))
		return nil
	})
}

// churn changes Services again and again, while checks of the node are to find nothing.
func (n *node) churn(t *testing.T, change func(ctx context.Context, i int) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	var changes atomic.Int32
	defer churn.Wait()
	defer cancel()
	churn.Go(func() {
		// More often than any cluster, and with room for others on the machine.
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-pace.C
			if err := change(ctx, i); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			changes.Add(1)
		}
	})
	rounds := 2
	if tier.All(t) {
		rounds = 5
	}
	longest := n.pauses(ctx, t, &churn)
	const settle = 3 * time.Second
	for round := 0; !t.Failed() && (round < rounds || changes.Load() < 100); round++ {
		lab.Eventually(t, "the node is checked while the agent follows", func() bool {
			longest()
			r := n.check(t, settle)
			healthy := len(r.Findings)+len(r.Unchecked) == 0
			if pause := longest(); !healthy && pause > settle/2 {
				t.Logf("the agent has synced nothing for %s", pause)
				return false // what is found may be true
			}
			if !healthy {
				t.Errorf("found on a healthy node:\n%s", text(r))
			}
			return true
		})
	}
}

// pauses watches how long the agent takes between two syncs, until ctx ends. What it returns gives the
// longest of these times since it was called last, the one that goes on included.
func (n *node) pauses(ctx context.Context, t *testing.T, watch *sync.WaitGroup) (longest func() time.Duration) {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
	check(t, err)
	var lock sync.Mutex
	var most time.Duration
	syncs, last := uint64(0), time.Now()
	look := func() {
		lock.Lock()
		defer lock.Unlock()
		most = max(most, time.Since(last))
		if now := statusmap.New(maps).Agent().Syncs; now != syncs {
			syncs, last = now, time.Now()
		}
	}
	watch.Go(func() {
		defer maps.Close()
		for ctx.Err() == nil {
			look()
			time.Sleep(20 * time.Millisecond)
		}
	})
	return func() time.Duration {
		look()
		lock.Lock()
		defer lock.Unlock()
		got := most
		most = 0
		return got
	}
}
