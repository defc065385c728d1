package packets_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// fragments returns a packet without options in fragments of at most size bytes,
// which is a multiple of 8.
func (f frame) fragments(id uint16, size int) [][]byte {
	var list [][]byte
	packet := f.bytes()
	header := ethernetSize + headerSize(f.to.Addr())
	segment := packet[header:]
	for offset := 0; offset < len(segment); offset += size {
		part := segment[offset:min(offset+size, len(segment))]
		more := offset+len(part) < len(segment)
		if f.to.Addr().Is4() {
			list = append(list, fragment4(packet[:header], id, offset, more, part))
		} else {
			list = append(list, fragment6(packet[:header], f.protocol, id, offset, more, part))
		}
	}
	return list
}

func fragment4(header []byte, id uint16, offset int, more bool, part []byte) []byte {
	p := slices.Concat(header, part)
	ip := p[ethernetSize:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[4:], id)
	place := uint16(offset / 8)
	if more {
		place |= 0x2000
	}
	binary.BigEndian.PutUint16(ip[6:], place)
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip[:20]))
	return p
}

func fragment6(header []byte, protocol byte, id uint16, offset int, more bool, part []byte) []byte {
	extension := make([]byte, 8)
	extension[0] = protocol
	place := uint16(offset)
	if more {
		place |= 1
	}
	binary.BigEndian.PutUint16(extension[2:], place)
	binary.BigEndian.PutUint16(extension[6:], id)
	p := slices.Concat(header, extension, part)
	ip := p[ethernetSize:]
	binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	ip[6] = unix.IPPROTO_FRAGMENT
	return p
}

// TestProgramFragments: the fragments of a packet are translated as if the packet
// had been fragmented afterwards, in both directions.
func TestProgramFragments(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	payload := strings.Repeat("payload ", 100)
	id := uint16(0)
	for name, protocol := range protocols {
		for _, family := range []byte{4, 6} {
			request := frame{from: crafted[family], to: virtual[family], protocol: protocol, flags: flagSYN, payload: payload}
			translated := request
			translated.to = backend[family]
			reply := frame{from: backend[family], to: crafted[family], protocol: protocol, flags: flagSYN | flagACK, payload: payload}
			translatedReply := reply
			translatedReply.from = virtual[family]
			for _, direction := range []struct {
				program  string
				in, want frame
			}{{"bl_ingress", request, translated}, {"bl_egress", reply, translatedReply}} {
				id += 2
				in, want := direction.in.fragments(id, 256), direction.want.fragments(id, 256)
				for i := range in {
					if verdict, out := b.run(t, direction.program, in[i]); verdict != passes || !bytes.Equal(out, want[i]) {
						t.Errorf("%s %d in %s: fragment %d of %d: verdict %d, packet\n% x, want\n% x",
							name, family, direction.program, i+1, len(in), int32(verdict), out, want[i])
					}
				}
				whole, wantWhole := direction.in.fragments(id, 1024)[0], direction.want.fragments(id, 1024)[0]
				if _, out := b.run(t, direction.program, whole); !bytes.Equal(out, wantWhole) {
					t.Errorf("%s %d in %s: one fragment that is all: packet\n% x, want\n% x", name, family, direction.program, out, wantWhole)
				}
				other := direction.in.fragments(id+1, 256)[1]
				if verdict, _ := b.run(t, direction.program, other); verdict != dropped {
					t.Errorf("%s %d in %s: a fragment of another datagram did not wait for the first one", name, family, direction.program)
				}
			}
		}
	}
}

// TestProgramFragmentsRefused: of a refused datagram the first fragment is answered, the others are
// dropped.
func TestProgramFragmentsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	undeclared := netip.AddrPortFrom(virtual[4].Addr(), 81)
	for name, protocol := range protocols {
		f := frame{from: crafted[4], to: undeclared, protocol: protocol, flags: flagSYN, payload: strings.Repeat("x", 600)}
		for i, fragment := range f.fragments(7, 256) {
			want := uint32(dropped)
			if i == 0 {
				want = redirect
			}
			if verdict, _ := b.run(t, "bl_ingress", fragment); verdict != want {
				t.Errorf("%s: fragment %d: verdict %d, want %d", name, i+1, int32(verdict), want)
			}
		}
	}
}

// TestFragments: fragmented datagrams reach backends here and on the other node, and their fragmented
// replies come back.
func TestFragments(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
	})
	c.watchChecksums(t)
	for _, network := range networks[2:] {
		for i, e := range []endpoint{local, remote} {
			for _, size := range []int{2000, 8000, 60000} {
				payload := strings.Repeat("datagram", size/8)
				got, err := exchange(c.client, network, nodePort(network, i+1), payload)
				if err != nil || !strings.HasPrefix(got, e.server()+" ") || !strings.HasSuffix(got, " "+payload) {
					t.Errorf("%s to %s, %d bytes: %d bytes came back: %v", network, e.server(), size, len(got), err)
				}
			}
		}
	}
}

// exchange sends a datagram and returns the answer. It sends another one when there is none
// in a while: a fragment may get lost.
func exchange(n *lab.Namespace, network string, to netip.AddrPort, payload string) (string, error) {
	for end := time.Now().Add(wait.Limit); ; {
		got, err := exchangeWithin(n, network, to, payload, 5*time.Second)
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
			return got, err
		}
	}
}

func exchangeWithin(n *lab.Namespace, network string, to netip.AddrPort, payload string, limit time.Duration) (string, error) {
	var conn net.Conn
	err := n.Run(func() (err error) {
		conn, err = net.Dial(network, to.String())
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(payload)); err != nil {
		return "", err
	}
	buf := make([]byte, 65536)
	size, err := conn.Read(buf)
	return string(buf[:size]), err
}

// TestFragmentsOfTCP: segments that a router had to fragment arrive.
func TestFragmentsOfTCP(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
	})
	c.router.SetMTU("nodes", 1000)
	c.watchChecksums(t)
	for i, e := range []endpoint{local, remote} {
		s := c.client.Socket("tcp4")
		// Packets may be fragmented on their way.
		if err := s.SetOption(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT); err != nil {
			t.Fatal(err)
		}
		got, err := askBy(s, "tcp4", nodePort("tcp4", i+1), strings.Repeat("x", 1400))
		if err != nil || got.name != e.server() {
			t.Errorf("to %s: %v, %v", e.server(), got, err)
		}
	}
}
