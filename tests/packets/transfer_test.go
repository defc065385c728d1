package packets_test

import (
	"crypto/sha256"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// How many bytes go over and come back.
const (
	transferSize = 10 << 20
	longTransfer = 40 << 20 // takes a while
)

// TestTransfer sends much data through a NodePort to the other node and back, with checksum and
// segmentation offload on and off, over routes and a tunnel with a smaller MTU.
func TestTransfer(t *testing.T) {
	for _, routing := range []string{"routes", "overlay"} {
		c := newCluster(t, routing == "overlay")
		c.serve(t, c.service(1, "web", "", []endpoint{remote}))
		for i, offload := range offloads {
			offload.set(c)
			for _, network := range tier.Share(t, networks[:2], i, 2) {
				t.Run(strings.Join([]string{routing, offload.name, network}, " "), func(t *testing.T) {
					watchChecksums(t, "client", c.client)
					watchChecksums(t, remote.server(), c.nodes[1].routed)
					transfer(t, c.client, network, nodePort(network, 1))
				})
			}
		}
	}
}

func transfer(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort) {
	t.Helper()
	transferOf(t, n, network, to, transferSize)
}

func transferOf(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort, size int64) {
	t.Helper()
	var conn net.Conn
	err := n.Run(func() (err error) {
		conn, err = net.DialTimeout(network, to.String(), wait.Limit)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 256)); err != nil { // the greeting
		t.Fatal(err)
	}
	sent, received := sha256.New(), sha256.New()
	failed := make(chan error, 1)
	go func() { failed <- send(conn, sent, size) }()
	got, err := io.Copy(received, conn)
	if err != nil {
		lab.LogConnections(t)
		t.Fatalf("after %d bytes: %v", got, err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if got != size || string(sent.Sum(nil)) != string(received.Sum(nil)) {
		t.Errorf("%d bytes came back of %d, or others", got, size)
	}
}

// send sends the bytes and closes that half of the connection.
func send(conn net.Conn, sum hash.Hash, size int64) error {
	source := io.LimitReader(rand.NewChaCha8([32]byte{}), size)
	if _, err := io.Copy(conn, io.TeeReader(source, sum)); err != nil {
		return err
	}
	return conn.(*net.TCPConn).CloseWrite()
}
