package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// roleWebServer is the role of a web server that has the argument after it as its
// name.
const roleWebServer = "web"

// A download takes downloadChunks lines, one every downloadPause.
const (
	downloadChunks = 25
	downloadPause  = 100 * time.Millisecond
	downloadEnd    = "complete"
)

// serveWeb answers every request with the server's name and the address of the
// client as the server sees it, one request for each connection. On SIGTERM it
// takes no more and ends when those at work are done, as a pod should.
func serveWeb(name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr) // net/http wrote it
		fmt.Fprintln(w, name, "answers", client)
	})
	mux.HandleFunc("/download", func(w http.ResponseWriter, _ *http.Request) { sendDownload(w, name) })
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":8080")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	server.SetKeepAlivesEnabled(false)
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	fmt.Println("listening")
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Shutdown(context.Background())
	}
}

func sendDownload(w http.ResponseWriter, name string) {
	fmt.Fprintln(w, name)
	for range downloadChunks {
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		time.Sleep(downloadPause)
		fmt.Fprintln(w, "...")
	}
	fmt.Fprintln(w, downloadEnd)
}

// startWebServer starts the web server of a pod and returns when it listens.
func (s *stage) startWebServer(ctx context.Context, p pod) (*exec.Cmd, error) {
	cmd, err := s.self(ctx, p.name, roleWebServer, p.name)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		return nil, errors.Join(fmt.Errorf("web server %s did not start: %w", p.name, err), cmd.Wait())
	}
	return cmd, nil
}
