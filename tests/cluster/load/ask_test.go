package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAskAll: each target has its own count, of an answer or of a failure.
func TestAskAll(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"Host": "h", "Client": "192.0.2.1"}`))
	}))
	defer server.Close()
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := datagramScheme + closed.LocalAddr().String()
	closed.Close()
	got := askAll([]string{server.URL, gone})
	if s := got[server.URL]; s.Short != 1 || s.Failed != 0 || s.Clients["192.0.2.1"] != 1 {
		t.Errorf("the server: %+v", s)
	}
	if s := got[gone]; s.Lost != 1 || s.Datagrams != 0 || len(s.Errors) != 1 {
		t.Errorf("nobody: %+v", s)
	}
}
