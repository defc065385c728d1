package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// UDPSocket identifies a connected UDP socket in its network namespace.
type UDPSocket struct {
	Local, Peer netip.AddrPort
	Cookie      uint64
	Device      uint32 // index of the device that it is bound to; 0 is none
}

// testRun is as much of struct __sk_buff as a test run takes the device from.
type testRun struct {
	_       [10]uint32
	Ifindex uint32
}

// UDPService asks a program, bl_udp_service, which Service has led a socket
// of the calling thread's network namespace to its peer. It returns the Service's id, and
// false for a socket that goes to its peer by itself or is none.
func UDPService(program *ebpf.Program, s UDPSocket) (uint32, bool, error) {
	query := SockBlUdpQuery{
		Cookie:    s.Cookie,
		Local:     AddrOf(s.Local.Addr()),
		Peer:      AddrOf(s.Peer.Addr()),
		LocalPort: Hton16(s.Local.Port()),
		PeerPort:  Hton16(s.Peer.Port()),
	}
	data, err := binary.Append(nil, binary.NativeEndian, &query)
	if err != nil {
		return 0, false, err
	}
	answer, err := program.Run(&ebpf.RunOptions{Data: data, Context: testRun{Ifindex: s.Device}})
	if errors.Is(err, unix.ENODEV) {
		// The device is gone. Without one, the socket is still found by its cookie, if its entry is in the array.
		answer, err = program.Run(&ebpf.RunOptions{Data: data})
	}
	if err != nil {
		return 0, false, fmt.Errorf("ask for the Service of a socket: %w", err)
	}
	return answer, answer != uint32(SockBlUdpAnswerBL_UDP_NO_SERVICE), nil
}
