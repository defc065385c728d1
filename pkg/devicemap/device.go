package devicemap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/setting"
)

// routedDevice is the index that stands for the device of any pod of this node.
const routedDevice = uint32(bpf.SockBlDeviceLimitBL_DEVICE_ROUTED)

// hairpinDevice is the index that stands for packets of the host to its own backends; see
// [Table.WriteHairpin].
const hairpinDevice = uint32(bpf.SockBlDeviceLimitBL_DEVICE_HAIRPIN)

// masqueradeDevice is the index that stands for the host's stack where a second flow begins: the
// least of those that stand for something.
const masqueradeDevice = uint32(bpf.SockBlDeviceLimitBL_DEVICE_MASQUERADE)

// MaxDevices is how many devices packets can be served on, MaxAddressed how many of them
// for nothing but an address of their own, and MaxOverlays how many as overlays.
const (
	MaxDevices   = int(masqueradeDevice) - 1
	MaxAddressed = MaxDevices / 2
	MaxOverlays  = MaxDevices - 32
)

// ReasonNodeIP is how [Device.Reason] begins for a device that has been chosen for a node IP,
// ReasonAddress for one that has been for nothing but an address of its own; the address follows.
// ReasonReplaced is that of [Device.Replaced].
const (
	ReasonNodeIP   = "holds node IP "
	ReasonAddress  = "has address "
	ReasonOverlay  = "overlay"
	ReasonReplaced = "replaced"
)

// Table is the devices of some maps.
type Table struct{ maps *bpfmap.Maps }

// New returns the devices of the maps.
func New(m *bpfmap.Maps) Table { return Table{m} }

// Device is a network device that faces clients or other nodes.
type Device struct {
	// ID is the index by which flows name the device: 1 to [MaxDevices].
	ID   uint32
	Name string
	// Ifindex is 0 when the device is gone or no longer chosen; the ID is kept for
	// another one of that name.
	Ifindex int
	Reason  string // why it was chosen, for people
	// Addr4 and Addr6 are the source of SNAT; the zero value is none.
	Addr4, Addr6 netip.Addr
	// NoEthernet says that packets start with the IP header.
	NoEthernet bool
	// OwnQdisc says that the agent made the device's clsact qdisc.
	OwnQdisc bool
	// Internal says that clients behind the device are inside of the cluster.
	Internal bool
	// AllPods says that routes to pods of this node lead to it as do those to pods of others.
	AllPods bool
	// MTU counts bytes from the IP header on.
	MTU int
	// Root is the ifindex of the device by which XDP programs send: the device itself
	// or, of a VLAN, the one below. 0 is none.
	Root int
	// Tags are those that the device's frames have there.
	Tags Tags
	// XDPSend says that XDP programs can send frames by the device, XDPSendBuffers
	// that they can send such as lie in several buffers.
	XDPSend, XDPSendBuffers bool
	// NoXDP is why XDP does not serve the device, for people; "" when it does or was
	// not asked to.
	NoXDP string
}

// Addressed reports whether the device has been chosen for nothing but an address of its own.
func (d *Device) Addressed() bool { return strings.HasPrefix(d.Reason, ReasonAddress) }

// Overlay reports whether the device has been chosen as an overlay.
func (d *Device) Overlay() bool { return strings.HasPrefix(d.Reason, ReasonOverlay) }

// Replaced reports whether this is a device as it was before it got another source of SNAT, with another ID: new
// flows have that, and those with this ID go on from the former source.
func (d *Device) Replaced() bool { return d.Reason == ReasonReplaced }

// NodeIP returns the node IP that the device has been chosen for; the zero value is none.
func (d *Device) NodeIP() (addr netip.Addr) {
	if text, ok := strings.CutPrefix(d.Reason, ReasonNodeIP); ok {
		addr, _ = netip.ParseAddr(text)
	}
	return addr
}

func (d *Device) entry() bpf.SockBlDeviceEntry {
	e := bpf.SockBlDeviceEntry{Ifindex: uint32(d.Ifindex), Mtu: uint32(d.MTU), Root: uint32(d.Root), Tag: d.Tags.entry()}
	bpf.PutString(e.Name[:], d.Name)
	bpf.PutString(e.Reason[:], d.Reason)
	bpf.PutString(e.NoXdp[:], d.NoXDP)
	if d.Addr4.IsValid() {
		addr := d.Addr4.As4()
		e.Addr4 = binary.NativeEndian.Uint32(addr[:])
	}
	if d.Addr6.IsValid() {
		e.Addr6 = bpf.AddrOf(d.Addr6)
	}
	for flag, is := range d.flags() {
		if *is {
			e.Flags |= uint32(flag)
		}
	}
	return e
}

// flags returns the device's flags by their bits.
func (d *Device) flags() map[bpf.SockBlDeviceFlag]*bool {
	return map[bpf.SockBlDeviceFlag]*bool{
		bpf.SockBlDeviceFlagBL_DEVICE_NO_ETHERNET:      &d.NoEthernet,
		bpf.SockBlDeviceFlagBL_DEVICE_OWN_QDISC:        &d.OwnQdisc,
		bpf.SockBlDeviceFlagBL_DEVICE_INTERNAL:         &d.Internal,
		bpf.SockBlDeviceFlagBL_DEVICE_XDP_SEND:         &d.XDPSend,
		bpf.SockBlDeviceFlagBL_DEVICE_XDP_SEND_BUFFERS: &d.XDPSendBuffers,
		bpf.SockBlDeviceFlagBL_DEVICE_ALL_PODS:         &d.AllPods,
	}
}

func deviceOf(id uint32, e *bpf.SockBlDeviceEntry) Device {
	d := Device{
		ID:      id,
		Name:    bpf.StringOf(e.Name[:]),
		Ifindex: int(e.Ifindex),
		Reason:  bpf.StringOf(e.Reason[:]),
		MTU:     int(e.Mtu),
		Root:    int(e.Root),
		Tags:    tagsOf(e.Tag),
		NoXDP:   bpf.StringOf(e.NoXdp[:]),
	}
	for flag, is := range d.flags() {
		*is = e.Flags&uint32(flag) != 0
	}
	if e.Addr4 != 0 {
		var addr [4]byte
		binary.NativeEndian.PutUint32(addr[:], e.Addr4)
		d.Addr4 = netip.AddrFrom4(addr)
	}
	if e.Addr6 != (bpf.SockBlAddr{}) {
		d.Addr6 = e.Addr6.Netip()
	}
	return d
}

// List returns the devices that have an ID, those that are gone or replaced among them, by
// ID.
func (t Table) List() ([]Device, error) {
	var list []Device
	err := bpfmap.Each(t.maps.BlDevice, func(id *uint32, e *bpf.SockBlDeviceEntry) {
		if e.Name[0] != 0 {
			list = append(list, deviceOf(*id, e))
		}
	})
	slices.SortFunc(list, func(a, b Device) int { return int(a.ID) - int(b.ID) })
	return list, err
}

// Present returns the devices of [Table.List] that are neither gone nor replaced.
func (t Table) Present() ([]Device, error) {
	list, err := t.List()
	return slices.DeleteFunc(list, func(d Device) bool { return d.Ifindex == 0 || d.Replaced() }), err
}

// Put adds or replaces the device of an ID. A packet that the device gets
// afterwards finds it.
func (t Table) Put(d Device) error {
	if d.ID == 0 || int(d.ID) > MaxDevices {
		return setting.Errorf("devices", "device %s: no ID is left: packets can be served on %d devices, on %d for nothing but an address of their own; choose fewer", d.Name, MaxDevices, MaxAddressed)
	}
	var former bpf.SockBlDeviceEntry
	if err := t.maps.BlDevice.Lookup(d.ID, &former); err != nil {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlDevice, err)
	}
	if former.Ifindex != uint32(d.Ifindex) {
		if err := t.release(int(former.Ifindex), d.ID); err != nil {
			return err
		}
	}
	entry := d.entry()
	if err := bpfmap.Put(t.maps.BlDevice, d.ID, &entry); err != nil {
		return err
	}
	return bpfmap.Put(t.maps.BlDeviceId, uint32(d.Ifindex), d.ID)
}

// Replace has the flows of a device go on from the addresses that it had by another ID, was; the rest is as d has it.
func (t Table) Replace(was, d Device) error {
	d.ID, d.Addr4, d.Addr6, d.Reason = was.ID, was.Addr4, was.Addr6, ReasonReplaced
	if d == was {
		return nil
	}
	entry := d.entry()
	return bpfmap.Put(t.maps.BlDevice, d.ID, &entry)
}

// release has the device of an ifindex no longer looked up by that, if it has this ID there.
func (t Table) release(ifindex int, id uint32) error {
	var known uint32
	err := t.maps.BlDeviceId.Lookup(uint32(ifindex), &known)
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && known != id {
		return nil
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlDeviceId, err)
	}
	return bpfmap.Remove(t.maps.BlDeviceId, uint32(ifindex))
}

// Serves reports whether packets are served on the device of that index.
func (t Table) Serves(ifindex int) (bool, error) {
	var id uint32
	err := t.maps.BlDeviceId.Lookup(uint32(ifindex), &id)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("map %s: %w", bpf.SockMapBlDeviceId, err)
	}
	return true, nil
}

// SetIDs has these devices, and no others, looked up by their indexes, as Put and Delete do for one. It reports
// whether it was otherwise.
func (t Table) SetIDs(devices []Device) (changed bool, err error) {
	have := make(map[uint32]uint32)
	errs := []error{bpfmap.Each(t.maps.BlDeviceId, func(ifindex, id *uint32) { have[*ifindex] = *id })}
	for i := range devices {
		ifindex := uint32(devices[i].Ifindex)
		if id, ok := have[ifindex]; !ok || id != devices[i].ID {
			changed = true
			errs = append(errs, bpfmap.Put(t.maps.BlDeviceId, ifindex, devices[i].ID))
		}
		delete(have, ifindex)
	}
	for ifindex := range have {
		changed = true
		errs = append(errs, bpfmap.Remove(t.maps.BlDeviceId, ifindex))
	}
	return changed, errors.Join(errs...)
}

// Delete takes a device out. Its ID is kept for another one of that name.
func (t Table) Delete(d Device) error {
	if err := t.release(d.Ifindex, d.ID); err != nil {
		return err
	}
	gone := Device{Name: d.Name}
	entry := gone.entry()
	return bpfmap.Put(t.maps.BlDevice, d.ID, &entry)
}

// ForgetRoutes makes the next connections look up their route again. To be called when
// routes have changed.
func (t Table) ForgetRoutes() error {
	hops := t.maps.BlBackendDev
	keys := make([]uint32, hops.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := hops.BatchUpdate(keys, make([]uint64, len(keys)), nil); err != nil {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlBackendDev, err)
	}
	return nil
}

// SetMasquerade sets where packets to pods of this node come from when they do not
// keep the client's address; a zero value is none.
func (t Table) SetMasquerade(addr4, addr6 netip.Addr) error {
	d := Device{Addr4: addr4, Addr6: addr6}
	entry := d.entry()
	return bpfmap.Put(t.maps.BlDevice, routedDevice, &entry)
}

// Masquerade returns what SetMasquerade has set.
func (t Table) Masquerade() (addr4, addr6 netip.Addr, err error) { return t.addrsOf(routedDevice) }

// addrsOf returns the addresses in the entry of an index that stands for more than one device.
func (t Table) addrsOf(id uint32) (addr4, addr6 netip.Addr, err error) {
	var entry bpf.SockBlDeviceEntry
	if err := t.maps.BlDevice.Lookup(id, &entry); err != nil {
		return addr4, addr6, fmt.Errorf("map %s: %w", bpf.SockMapBlDevice, err)
	}
	d := deviceOf(id, &entry)
	return d.Addr4, d.Addr6, nil
}

// Hairpin returns where packets come from that hairpin.
func (t Table) Hairpin() (addr4, addr6 netip.Addr, err error) { return t.addrsOf(hairpinDevice) }
