package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// answer is what a server says of a request.
type answer struct {
	// Host is the server's name, Client the address that it was asked from.
	Host   string
	Client string
	// Request is what a datagram said.
	Request string `json:",omitempty"`
}

func newServe() *cobra.Command {
	var address string
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer HTTP requests and datagrams, also for a while after being told to end",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), address, grace)
		},
	}
	cmd.Flags().StringVar(&address, "address", ":8080", "address and port to listen on")
	cmd.Flags().DurationVar(&grace, "grace", 0, "how long to go on as before after SIGTERM")
	return cmd
}

// serve answers until ctx ends and the grace is over. Connections are closed then
// when they are idle.
func serve(ctx context.Context, address string, grace time.Duration) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	server := http.Server{
		Addr: address,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			client, _, _ := net.SplitHostPort(r.RemoteAddr)
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer{Host: host, Client: client}) // the client sees it
		}),
	}
	datagrams, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		if err := serveDatagrams(datagrams, address, host); err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
		}
	}()
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		time.Sleep(grace)
		late, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		ended <- server.Shutdown(late)
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}
