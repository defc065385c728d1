package lab

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Capture sees every packet that passes a device of a namespace, among them
// those that ask for a neighbour's address.
type Capture struct{ socket *Socket }

// Capture starts a capture. It ends with the test.
func (n *Namespace) Capture() *Capture {
	n.t.Helper()
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	return &Capture{n.RawSocket(unix.AF_PACKET, unix.SOCK_DGRAM, int(all))}
}

// Saw reports whether a packet that holds the address and the text was captured and not told
// of yet: one that was sent, or has come, before the call.
func (c *Capture) Saw(addr netip.Addr, text string) bool {
	frame := make([]byte, 2048)
	for c.socket.Ready(0) {
		size, _, err := unix.Recvfrom(c.socket.fd, frame, 0)
		if err == nil && bytes.Contains(frame[:size], addr.Unmap().AsSlice()) && bytes.Contains(frame[:size], []byte(text)) {
			return true
		}
	}
	return false
}
