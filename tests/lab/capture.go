package lab

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Capture sees every packet that passes a device of a namespace, among them
// those that ask for a neighbour's address.
type Capture struct {
	socket *Socket
	frames [][]byte
}

// Capture starts a capture. It ends with the test.
func (n *Namespace) Capture() *Capture {
	n.t.Helper()
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	return &Capture{socket: n.RawSocket(unix.AF_PACKET, unix.SOCK_DGRAM, int(all))}
}

// Saw reports whether a packet that holds the address and the text was sent, or has come, since
// the capture began.
func (c *Capture) Saw(addr netip.Addr, text string) bool {
	buf := make([]byte, 2048)
	for c.socket.Ready(0) {
		if size, _, err := unix.Recvfrom(c.socket.fd, buf, 0); err == nil {
			c.frames = append(c.frames, bytes.Clone(buf[:size]))
		}
	}
	return slices.ContainsFunc(c.frames, func(frame []byte) bool {
		return bytes.Contains(frame, addr.Unmap().AsSlice()) && bytes.Contains(frame, []byte(text))
	})
}
