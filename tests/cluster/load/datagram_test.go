package main

import (
	"context"
	"net"
	"testing"

	"github.com/beeline-lb/beeline/tests/wait"
)

// TestDatagrams: a datagram that gets lost is sent again, and its answer counts once.
func TestDatagrams(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		buf := make([]byte, 64)
		for i := 0; ; i++ {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			if i == 0 {
				continue // lost
			}
			_, _ = server.WriteTo([]byte(`{"Host": "h", "Request": "0"}`), from) // of another request
			_, _ = server.WriteTo([]byte(`{"Host": "h", "Request": "`+string(buf[:n])+`"}`), from)
		}
	}()
	r := &runner{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go r.keepDatagrams(ctx, datagramScheme+server.LocalAddr().String())
	wait.Until(t, "three answers", func() bool { return r.count.read().Datagrams >= 3 })
	if s := r.count.read(); s.Resent != 1 || s.Lost != 0 || s.Hosts["h"] != s.Datagrams {
		t.Errorf("%+v", s)
	}
}

// TestNoAnswer: a server that is not there is a failure at once.
func TestNoAnswer(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := datagramScheme + server.LocalAddr().String()
	server.Close()
	r := &runner{}
	r.oneDatagram(target, 0)
	if s := r.count.read(); s.Lost != 1 || s.Datagrams != 0 || len(s.Failures) != 1 {
		t.Errorf("%+v", s)
	}
}

// TestServerEnds: a socket whose server ends is no failure, a server that is not there for the
// next one is.
func TestServerEnds(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 64)
		if n, from, err := server.ReadFrom(buf); err == nil {
			_, _ = server.WriteTo([]byte(`{"Host": "h", "Request": "`+string(buf[:n])+`"}`), from)
		}
		server.Close()
	}()
	r := &runner{}
	target := datagramScheme + server.LocalAddr().String()
	if err := r.useSocket(t.Context(), target); err != nil {
		t.Error(err)
	}
	if err := r.useSocket(t.Context(), target); err == nil {
		t.Error("no error without a server")
	}
}

// TestSizes: a datagram of a size is answered by one of that size.
func TestSizes(t *testing.T) {
	local, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := local.LocalAddr().String()
	local.Close()
	go func() { _ = serveDatagrams(t.Context(), target, "h") }()
	const size = 1400
	r := &runner{}
	wait.Until(t, "an answer", func() bool {
		r.oneDatagram(datagramScheme+target, size)
		return r.count.read().Datagrams > 0
	})
	conn, err := dialDatagram(target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(pad([]byte("1"), size)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, largest)
	if n, err := conn.Read(buf); err != nil || n != size {
		t.Errorf("an answer of %d bytes, want %d: %v", n, size, err)
	}
}
