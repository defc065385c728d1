package socket

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzAnswer: whatever the kernel lists, a message that is too short is an error, and of any
// other exactly the socket that it names would be destroyed, with addresses of its family.
func FuzzAnswer(f *testing.F) {
	seed, err := binary.Append(nil, binary.NativeEndian, answer{Family: unix.AF_INET, State: established, ID: id{
		SourcePort: [2]byte{0x12, 0x34}, DestinationPort: [2]byte{0, 53},
		Source: [16]byte{10, 0, 0, 1}, Destination: [16]byte{10, 96, 0, 10}, Cookie: [2]uint32{7, 1},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	six := bytes.Clone(seed)
	six[0] = unix.AF_INET6
	f.Add(append(six, make([]byte, 20)...)) // the rest of struct inet_diag_msg
	f.Add(seed[:len(seed)-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, message []byte) {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			c, err := parseAnswer(family, message)
			if size := binary.Size(answer{}); err != nil || len(message) < size {
				if (err != nil) != (len(message) < size) {
					t.Fatalf("%d bytes: %v", len(message), err)
				}
				continue
			}
			s := c.socket()
			if v4 := family == unix.AF_INET; v4 && (!s.Local.Addr().Is4() || !s.Peer.Addr().Is4()) || s.Local.Addr().Is4In6() || s.Peer.Addr().Is4In6() {
				t.Fatalf("family %d: a socket from %s to %s", family, s.Local, s.Peer)
			}
			const header, sockid = 8, 4
			asked := (&request{Family: c.family, ID: c.id}).Serialize()
			if got, want := asked[header:], message[sockid:binary.Size(answer{})]; asked[0] != family || !bytes.Equal(got, want) {
				t.Fatalf("family %d: % x is asked for as % x", family, want, asked)
			}
		}
	})
}
