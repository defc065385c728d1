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
	frames []Frame
}

// Frame is a packet as it passed a device, from the link layer's header on.
type Frame struct {
	Device int // its index
	Leaves bool
	Bytes  []byte
}

// Capture starts a capture. It ends with the test.
func (n *Namespace) Capture() *Capture {
	n.t.Helper()
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	return &Capture{socket: n.RawSocket(unix.AF_PACKET, unix.SOCK_RAW, int(all))}
}

// Frames returns what has passed since the capture began, or since it was asked before.
func (c *Capture) Frames() []Frame {
	c.read()
	frames := c.frames
	c.frames = nil
	return frames
}

// Saw reports whether a packet that holds the address and the text was sent, or has come, since
// the capture began.
func (c *Capture) Saw(addr netip.Addr, text string) bool {
	c.read()
	return slices.ContainsFunc(c.frames, func(f Frame) bool {
		return bytes.Contains(f.Bytes, addr.Unmap().AsSlice()) && bytes.Contains(f.Bytes, []byte(text))
	})
}

func (c *Capture) read() {
	buf := make([]byte, 2048)
	for c.socket.Ready(0) {
		size, from, err := unix.Recvfrom(c.socket.fd, buf, 0)
		if at, ok := from.(*unix.SockaddrLinklayer); err == nil && ok {
			c.frames = append(c.frames, Frame{at.Ifindex, at.Pkttype == unix.PACKET_OUTGOING, bytes.Clone(buf[:size])})
		}
	}
}
