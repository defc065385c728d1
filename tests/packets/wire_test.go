package packets_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// The ends of a wire beside the port: towards it, and as the bridge's port in its
// place. The name of the latter is as that of a pod's device.
const (
	wireOuter = "wire"
	wireInner = "vethwire"
)

// wire passes frames between a port of a bridge and the bridge, the first fragment
// of a datagram after all the others.
type wire struct {
	fds      [2]int // AF_PACKET sockets of the port and of wireOuter
	overtook atomic.Int64
	ended    atomic.Bool
}

// reorder puts a wire between a bridge and one of its ports, until the test ends.
// Checksums and segmentation must not be left to receivers.
func reorder(t *testing.T, n *lab.Namespace, bridge, port string) *wire {
	t.Helper()
	n.SetSysctl("ipv6/conf/default/disable_ipv6", "1")
	link := netlink.NewVeth(netlink.LinkAttrs{Name: wireInner})
	link.PeerName = wireOuter
	n.AddLink(link)
	w := &wire{}
	err := n.Run(func() error {
		outer, err := netlink.LinkByName(wireOuter)
		if err != nil {
			return err
		}
		device, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(outer), netlink.LinkSetNoMaster(device)); err != nil {
			return err
		}
		for i, index := range []int{device.Attrs().Index, outer.Attrs().Index} {
			if w.fds[i], err = packetSocket(index); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("put a wire at %s: %v", port, err)
	}
	for _, device := range []string{port, wireOuter} {
		n.SetSysctl("ipv4/conf/"+device+"/arp_ignore", "8")
		n.SetSysctl("ipv6/conf/"+device+"/disable_ipv6", "1")
	}
	n.SetChecksumOffload(false, port, wireOuter, wireInner)
	n.AddPort(bridge, wireInner)
	done := make(chan struct{})
	for i := range w.fds {
		go func() { w.carry(w.fds[i], w.fds[1-i]); done <- struct{}{} }()
	}
	t.Cleanup(func() {
		w.ended.Store(true)
		<-done
		<-done
		unix.Close(w.fds[0])
		unix.Close(w.fds[1])
	})
	return w
}

// packetSocket returns a socket for the frames that a device receives, which wakes
// up now and then.
func packetSocket(ifindex int) (int, error) {
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	wake := unix.Timeval{Usec: 20_000}
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifindex}))
}

// carry passes frames on until the wire ends.
func (w *wire) carry(from, to int) {
	frame := make([]byte, 1<<16)
	waiting := map[string][]byte{} // first fragments, by datagram
	ended := map[string]bool{}     // datagrams whose last fragment has gone by
	for !w.ended.Load() {
		size, err := unix.Read(from, frame)
		if err != nil {
			continue // nothing in a while
		}
		datagram, first, last := fragmentOf(frame[:size])
		if first && !last && !ended[datagram] {
			waiting[datagram] = append([]byte(nil), frame[:size]...)
			continue
		}
		_, _ = unix.Write(to, frame[:size]) // a device that is down loses it
		if held := waiting[datagram]; held != nil && last {
			time.Sleep(time.Millisecond)
			w.overtook.Add(1) // before an answer can come
			_, _ = unix.Write(to, held)
			delete(waiting, datagram)
		}
		if !first {
			ended[datagram] = ended[datagram] || last
		}
	}
}

// fragmentOf names the datagram that a frame is a fragment of and says whether it is
// the first or the last of it; what is whole is both.
func fragmentOf(frame []byte) (datagram string, first, last bool) {
	ip := frame[ethernetSize:]
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == unix.ETH_P_IP:
		place := binary.BigEndian.Uint16(ip[6:])
		return fmt.Sprintf("% x %d % x", ip[4:6], ip[9], ip[12:20]), place&0x1fff == 0, place&0x2000 == 0
	case kind == unix.ETH_P_IPV6 && ip[6] == unix.IPPROTO_FRAGMENT:
		place := binary.BigEndian.Uint16(ip[42:])
		return fmt.Sprintf("% x % x", ip[44:48], ip[8:40]), place&0xfff8 == 0, place&1 == 0
	}
	return "", true, true
}
