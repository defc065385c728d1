package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// Options configure a [Datapath].
type Options struct {
	// BPFFS is a folder on a BPF file system; the pins go below it.
	BPFFS string
	// Cgroup is a folder in a cgroup2 hierarchy: the sockets of the processes in it
	// and below are served.
	Cgroup string
	Sizes  bpfmap.Sizes
	// UDPPeerIdle is how long an idle unconnected UDP socket keeps its backend; 0
	// is 60 s.
	UDPPeerIdle time.Duration
	// LocalityIdle is [Constants.LocalityIdle].
	LocalityIdle time.Duration

	// Devices are patterns ([path.Match]) of the names of the devices that face
	// clients or other nodes, or [DevicesAuto] alone. Without any, or with
	// [DevicesNone] alone, only sockets are served.
	Devices []string
	// PodDevices are patterns of the names of the host's side of pods' devices, for
	// pods whose sockets are not translated.
	PodDevices []string
	// HostSocketsOnly leaves the sockets of other network namespaces than the node's
	// alone.
	HostSocketsOnly bool
	// LeaveNAT leaves the sockets of network namespaces alone that translate their own
	// connections; their packets are served at their devices, if any are served.
	LeaveNAT bool
	// TC is how programs are attached to devices; "" is [TCAuto].
	TC TCMode
	// XDP is whether packets that go on to other nodes are served before the kernel
	// allocates an skb; "" is [XDPOff].
	XDP XDPMode
	// NodeAddrs are the node's own IPs, as far as they are known: the devices that
	// hold them face other nodes. See [Datapath.SetNodeAddrs].
	NodeAddrs []netip.Addr
	// WithoutNode says that NodeAddrs are all: no Node object has others.
	WithoutNode bool
	// ClusterCIDRs are ranges of pods: routes to them lead to other nodes.
	ClusterCIDRs []netip.Prefix
	// OwnPods and PodsOfNodes are what [Datapath.SetOwnPods] and [Datapath.SetPodsOfNodes] are called with, for
	// [Problems] alone.
	OwnPods, PodsOfNodes []netip.Prefix
	// NodePorts are the CIDRs of nodePortAddresses: [DevicesAuto] takes devices in them.
	NodePorts []netip.Prefix
	// Internal says which packets come from inside of the cluster.
	Internal Internal
	// MasqueradeAll hides clients from backends on this node, too, except where the
	// traffic policy is to show them.
	MasqueradeAll bool
	// SNATPortMin and SNATPortMax bound the source ports of connections to backends
	// on other nodes, both included; both 0 is 1024 to 65535.
	SNATPortMin, SNATPortMax uint16
	// ForwardMark is the bit that packets to a backend on this node are marked with; 0
	// is none.
	ForwardMark uint32
	// TunnelPort is the UDP port of the tunnel; 0 is no tunnel.
	TunnelPort uint16
	// TrafficSampling is [Constants.TrafficSampling].
	TrafficSampling uint32
	// Outliers says that a Service may ask for outlier detection: connect() of TCP is followed.
	Outliers bool
	// TunnelClamp lowers the MSS of TCP connections that come by the tunnel to what fits
	// into it.
	TunnelClamp bool
}

// Internal says which packets come from inside of the cluster: those that come in by one of the
// devices.
type Internal struct {
	// OfNode says that the Node object has the ranges of this node's pods, which are not known at the
	// start: see [Datapath.SetOwnPods].
	OfNode bool
	// Bridge is the name of a device, InterfacePrefix the beginning of names; "" is
	// none.
	Bridge, InterfacePrefix string
}

// by reports whether packets that come in by a device of this name are internal.
func (i *Internal) by(name string) bool {
	return i.Bridge != "" && name == i.Bridge || i.InterfacePrefix != "" && strings.HasPrefix(name, i.InterfacePrefix)
}

// Datapath is the maps and the programs of one agent.
type Datapath struct {
	opts      Options
	maps      *bpfmap.Maps
	services  *servicemap.Store
	deviceMap devicemap.Table
	sockets   *bpf.SockPrograms        // nil until they are loaded
	devices   map[string]*ebpf.Program // see [Datapath.deviceProgram]
	xdp       *ebpf.Program            // nil when it is not asked for
	xdpBelow  *ebpf.Program            // nil until it is needed
	xdpParts  map[bool]*ebpf.Program
	constants Constants
	lock      *lock
	netns     *netns.Namespace
	tcx       bool // else clsact

	programIDs map[*ebpf.Program]uint32 // see [Datapath.programID]

	asksConntrack bool

	nodeAddrs atomic.Pointer[[]netip.Addr] // nil before any are told
	podsMu    sync.Mutex                   // of pods, held while they are written
	pods      pods

	watch  *watch
	again  chan struct{} // of room 1, see [Datapath.lookAgain]
	counts atomic.Pointer[map[DeviceCount]int]

	mu       sync.Mutex           // held while devices are attached to
	attached time.Time            // zero before
	state    map[int]*deviceState // by index
	nat      map[uint64][]int     // see [devicemap.Table.NAT]; nil before it is read
	natLeft  map[uint64]bool      // whether their sockets are left alone, as was written
	natFull  bool                 // the last one to be noted had no room
	swept    bool                 // filters of a former agent have been looked for
	written  writtenEntries

	natSought map[uint64]time.Time // network namespaces that are not noted, and when they were last looked for
	eachNetns func(func() error) error

	sandboxes     map[int]bool                          // see [devicemap.Sandboxes]; nil before it is read
	sandboxSought map[bpf.SockBlSandboxPacket]time.Time // when a device was last looked for
}

// Prepare takes the place of any former agent on the BPF file system, opens or
// makes the maps and loads the programs. Nothing changes for traffic until
// [Datapath.Attach], except that programs at work are replaced at once when a size
// in opts has changed. Devices are those of the calling thread's network
// namespace. The error is a [RunningError] when another agent runs.
func Prepare(ctx context.Context, opts Options) (*Datapath, error) {
	defer runtime.KeepAlive(kernelTypes())
	if err := checkRights(); err != nil {
		return nil, err
	}
	if err := checkCgroup2(opts.Cgroup); err != nil {
		return nil, err
	}
	if err := checkBPFFS(opts.BPFFS); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(Dir(opts.BPFFS), 0o700); err != nil {
		return nil, explain(fmt.Errorf("make the pins' folder: %w", err))
	}
	l, err := takeLock(opts.BPFFS)
	if err != nil {
		return nil, err
	}
	d := &Datapath{
		opts: opts, lock: l, xdpParts: make(map[bool]*ebpf.Program), again: make(chan struct{}, 1),
		programIDs: make(map[*ebpf.Program]uint32),
		state:      make(map[int]*deviceState), natLeft: make(map[uint64]bool),
		natSought: make(map[uint64]time.Time), eachNetns: netns.Each,
		sandboxSought: make(map[bpf.SockBlSandboxPacket]time.Time),
	}
	d.watch = newWatch(d.relevantRoute)
	if d.netns, err = netns.Current(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.maps, err = bpfmap.Load(Dir(opts.BPFFS), opts.Sizes); err != nil {
		return nil, errors.Join(explain(err), d.Close())
	}
	// At once: a former agent's would seem to wait for this one while it loads its programs.
	statusmap.New(d.maps).SetWaiting(time.Time{})
	if d.services, err = servicemap.Open(d.maps); err != nil {
		return nil, errors.Join(explain(err), d.Close())
	}
	d.deviceMap = devicemap.New(d.maps)
	cookie, err := NetnsCookie()
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.constants = Constants{
		HostNetns:       cookie,
		HostSocketsOnly: opts.HostSocketsOnly,
		LeaveNAT:        d.leavesNAT(),
		Seed:            rand.Uint32(),
		Sent:            secret(),
		UDPPeerIdle:     opts.UDPPeerIdle,
		LocalityIdle:    opts.LocalityIdle,
		SNATPortMin:     opts.SNATPortMin,
		SNATPortMax:     opts.SNATPortMax,
		ForwardMark:     opts.ForwardMark,
		MasqueradeAll:   opts.MasqueradeAll,
		TunnelPort:      opts.TunnelPort,
		TunnelClamp:     opts.TunnelClamp,
		TrafficSampling: opts.TrafficSampling,
		ICMPRate:        new(icmpRate()),
		XDPGeneric:      opts.XDP == XDPGeneric,
	}
	if err := d.load(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.tcx, err = d.useTCX(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.maps.Resized() {
		if list := d.maps.Converted(); len(list) > 0 {
			klog.InfoS("Tables of a former version are converted", "maps", list)
		}
		if err := d.resize(ctx); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// load loads the programs that a node with these options needs in any case.
func (d *Datapath) load() error {
	var err error
	d.asksConntrack = HaveConntrack()
	if d.sockets, err = LoadSockets(d.maps, d.constants); err != nil {
		return explain(err)
	}
	d.devices = make(map[string]*ebpf.Program)
	if d.servesPackets() {
		if d.devices, err = LoadDevices(d.maps, d.constants, devicePrograms()...); err != nil {
			return explain(err)
		}
	}
	if d.opts.XDP != "" && d.opts.XDP != XDPOff {
		if d.xdp, err = LoadXDP(d.maps, d.constants); err != nil {
			return explain(err)
		}
	}
	return nil
}

// resize attaches at once programs that use the tables of another size: what those of the
// former agent read must not grow old, and what they know is moved.
func (d *Datapath) resize(ctx context.Context) error {
	if err := d.Attach(ctx); err != nil {
		return err
	}
	var moved []bpfmap.Moved
	err := d.behind()
	if err == nil {
		moved, err = d.maps.Move()
	}
	if err != nil {
		// The programs look into the former tables as long as they run.
		klog.ErrorS(err, "Tables keep a part of their entries at the former size until the agent starts again")
		return nil
	}
	for _, m := range moved {
		klog.InfoS("Table resized", "map", m.Map, "setting", m.Setting, "from", m.From, "to", m.To,
			"entries", m.Entries, "dropped", m.Dropped)
	}
	if len(moved) == 0 {
		return d.removeOthers()
	}
	former := d.loaded()
	d.xdp, d.xdpBelow = nil, nil
	clear(d.xdpParts)
	err = d.load()
	if err == nil {
		err = d.Attach(ctx)
	}
	for _, p := range former {
		err = errors.Join(err, p.Close())
	}
	return err
}

// loaded returns what closes the programs.
func (d *Datapath) loaded() []io.Closer {
	var list []io.Closer
	if d.sockets != nil {
		list = append(list, d.sockets)
	}
	others := slices.AppendSeq(slices.Collect(maps.Values(d.devices)), maps.Values(d.xdpParts))
	for _, p := range append(others, d.xdp, d.xdpBelow) {
		if p != nil {
			list = append(list, p)
		}
	}
	return list
}

// NetnsCookie returns the cookie of the calling thread's network namespace: the agent's is the
// node's.
func NetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("get the network namespace's cookie: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("get the network namespace's cookie (needs Linux 5.14 or newer): %w", err)
	}
	return cookie, nil
}

// Maps returns the maps.
func (d *Datapath) Maps() *bpfmap.Maps { return d.maps }

// AsksConntrack reports whether the programs ask the kernel which connections it tracks.
func (d *Datapath) AsksConntrack() bool { return d.asksConntrack }

// Services returns what writes Services into the maps.
func (d *Datapath) Services() *servicemap.Store { return d.services }

// Attach puts the programs to work, in place of those of a former agent, and pins
// maps and links. To be called when the maps are complete.
func (d *Datapath) Attach(ctx context.Context) error {
	defer runtime.KeepAlive(kernelTypes())
	dir := Dir(d.opts.BPFFS)
	if err := d.maps.Pin(dir); err != nil {
		return err
	}
	if err := attachHooks(dir, d.opts.Cgroup, d.opts.hooks(), d.sockets); err != nil {
		return explain(err)
	}
	d.setAttached()
	// One odd device does not keep the others from being served, nor the sockets. What
	// fails has been logged and is tried again.
	_ = d.SyncDevices(ctx)
	return d.removeOthers()
}

func (d *Datapath) setAttached() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attached = time.Now()
}

// useTCX reports whether programs are attached to devices by tcx, else by clsact.
func (d *Datapath) useTCX() (bool, error) {
	switch d.opts.TC {
	case TCClsact:
		return false, nil
	case "", TCAuto, TCX:
	default:
		return false, fmt.Errorf("the TC mode is %q, want %s, %s or %s", d.opts.TC, TCAuto, TCX, TCClsact)
	}
	have, err := haveTCX()
	if err != nil {
		return false, explain(err)
	}
	if !have && d.opts.TC == TCX {
		return false, errors.New("the kernel lacks tcx links: they need Linux 6.6 or newer, use clsact")
	}
	return have, nil
}

// Close releases the lock for another agent. Pinned programs go on.
func (d *Datapath) Close() error {
	var errs []error
	for _, p := range d.loaded() {
		errs = append(errs, p.Close())
	}
	if d.maps != nil {
		errs = append(errs, d.maps.Close())
	}
	if d.netns != nil {
		errs = append(errs, d.netns.Close())
	}
	return errors.Join(append(errs, d.lock.release())...)
}

// Cleanup removes our filters from the devices of the calling thread's network
// namespace, our programs from their XDP dispatchers, and every pin of ours below the BPF
// file system, and so every link, program and map. Filters and dispatchers live without those pins,
// so it looks for them in any case; filters of a node that serves with another BPF file system stay, which is an error
// where nothing of ours is pinned. It returns what it removed. What cannot be removed
// keeps nothing else but the maps, by which the next clean-up finds it. The error is a
// [RunningError] while an agent runs.
func Cleanup(ctx context.Context, bpffs string) (removed []string, err error) {
	if nothingPinned(bpffs) {
		return cleanupFilters(bpffs)
	}
	if err := checkBPFFS(bpffs); err != nil {
		return nil, err
	}
	l, err := takeLock(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return cleanupDevices(ctx, bpffs)
	}
	if err != nil {
		return nil, err
	}
	defer l.release()
	removed, err = cleanupDevices(ctx, bpffs)
	errs := []error{err}
	schemas, err := os.ReadDir(root(bpffs))
	errs = append(errs, err)
	for _, links := range []bool{true, false} {
		for _, s := range schemas {
			pins, err := removePins(filepath.Join(root(bpffs), s.Name()), links)
			removed, errs = append(removed, pins...), append(errs, err)
		}
		if err := errors.Join(errs...); err != nil {
			return removed, err
		}
	}
	for _, s := range schemas {
		errs = append(errs, os.Remove(filepath.Join(root(bpffs), s.Name())))
	}
	if err := errors.Join(append(errs, os.Remove(root(bpffs)))...); err != nil {
		return removed, err
	}
	return append(removed, root(bpffs)), nil
}

// cleanupDevices removes what is at devices and not by a link that is pinned with ours, and returns it.
func cleanupDevices(ctx context.Context, bpffs string) (removed []string, err error) {
	removed, err = cleanupFilters(bpffs)
	left, errLeft := leaveDispatchers(ctx, bpffs, func(int) bool { return false })
	for _, device := range left {
		removed = append(removed, "program of the XDP dispatcher of "+device)
	}
	return removed, errors.Join(err, errLeft)
}

// removeOthers removes the pins of other schemas and layouts, whose programs are not needed
// any more.
func (d *Datapath) removeOthers() error {
	bpffs := d.opts.BPFFS
	if err := d.maps.RemoveOtherLayouts(Dir(bpffs)); err != nil {
		return err
	}
	schemas, err := os.ReadDir(root(bpffs))
	if err != nil {
		return err
	}
	for _, s := range schemas {
		path := filepath.Join(root(bpffs), s.Name())
		if path == Dir(bpffs) {
			continue
		}
		if err := removeFolder(path); err != nil {
			return fmt.Errorf("remove pins of another version: %w", err)
		}
	}
	return nil
}

// removeFolder removes a folder of pins, the links first: no program is left that finds its tables
// empty.
func removeFolder(dir string) error {
	for _, links := range []bool{true, false} {
		if _, err := removePins(dir, links); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

// removePins removes the links that are pinned in a folder, or all else. One that cannot be removed
// keeps no other.
func removePins(dir string, links bool) (removed []string, err error) {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range pins {
		if strings.HasPrefix(p.Name(), linkPrefix) != links {
			continue
		}
		path := filepath.Join(dir, p.Name())
		remove := os.Remove
		if links {
			remove = removeLink
		}
		if err := remove(path); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}
