package udpsocket

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzOrigin: whatever control messages the kernel gives with a datagram, they are an error or say an
// address.
func FuzzOrigin(f *testing.F) {
	f.Add([]byte{})
	f.Add(unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: 2, Spec_dst: [4]byte{192, 0, 2, 1}, Addr: [4]byte{192, 0, 2, 255}}))
	f.Add(unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: 3, Addr: netip.MustParseAddr("2001:db8::1").As16()}))
	f.Add(unix.PktInfo4(&unix.Inet4Pktinfo{})[:unix.SizeofCmsghdr+4])
	f.Add(append(unix.UnixRights(1, 2), unix.PktInfo6(&unix.Inet6Pktinfo{})...))
	f.Fuzz(func(t *testing.T, control []byte) {
		before := bytes.Clone(control)
		var o Origin
		var err error
		bounds.Check(t, len(control), func() { o, err = parseOrigin(control) })
		if !bytes.Equal(control, before) {
			t.Fatal("the bytes are changed")
		}
		if (err == nil) != o.Addr.IsValid() || err != nil && o != (Origin{}) {
			t.Fatalf("got %+v, %v", o, err)
		}
	})
}
