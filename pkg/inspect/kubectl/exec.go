package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	//lint:ignore SA1019 spdy.Upgrader of client-go has its type
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	streaming "k8s.io/streaming/pkg/httpstream"
)

// The most that a command may print, for a node is not trusted with the memory of the caller.
const (
	maxOut = 64 << 20
	maxErr = 64 << 10
)

// ExitError says that a command has ended with another exit code than 0.
type ExitError struct {
	Code int
	// Text is what it has written to standard error.
	Text string
}

// Error returns what the command says itself.
func (e *ExitError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Text
}

// Exec runs a command in an agent's pod, no shell between, and returns what it prints. The error is
// an [*ExitError] where it has ended by itself; what it has printed is returned then, too.
//
// When ctx ends, the command is left to itself.
func (c *Cluster) Exec(ctx context.Context, agent Agent, command ...string) ([]byte, error) {
	out := &bounded{most: maxOut}
	err := c.run(ctx, agent, remotecommand.StreamOptions{Stdout: out}, command)
	var exit *ExitError
	switch {
	case err != nil && !errors.As(err, &exit): // out may still be written to
		return nil, err
	case out.more:
		return nil, fmt.Errorf("exec in pod %s: it printed more than %d MiB", agent.Pod, maxOut>>20)
	}
	return out.kept.Bytes(), err
}

// run runs a command with these streams, until it or ctx ends. The error is an [*ExitError] where it
// has ended by itself.
func (c *Cluster) run(ctx context.Context, agent Agent, o remotecommand.StreamOptions, command []string) error {
	at := c.core.Post().Namespace(c.options.Namespace).Resource("pods").Name(agent.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: agent.container, Command: command, Stdin: o.Stdin != nil, Stdout: true, Stderr: true}, c.parameters).URL()
	executor, err := c.executor(at)
	if err != nil {
		return err
	}
	errs := &bounded{most: maxErr}
	o.Stderr = errs
	err = stream(ctx, executor, o)
	var exit exec.CodeExitError
	switch {
	case errors.As(err, &exit):
		return &ExitError{exit.Code, strings.TrimSpace(errs.kept.String())}
	case err != nil:
		return fmt.Errorf("exec in pod %s: %w", agent.Pod, err)
	}
	return nil
}

// stream runs a command until it or ctx ends, and returns the cause of the latter. By SPDY client-go
// waits for the API server's response whatever ctx says; what waits still then is left to itself. By
// WebSocket it would set ctx's deadline on the connection, whose error may come first and says nothing
// of ctx.
func stream(ctx context.Context, executor remotecommand.Executor, o remotecommand.StreamOptions) error {
	unlimited, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- executor.StreamWithContext(unlimited, o) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// executor returns what runs a command by WebSocket, or by SPDY where the API server, or a proxy
// before it, does not take that. It asks as kubectl does.
func (c *Cluster) executor(at *url.URL) (remotecommand.Executor, error) {
	socket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, at.String())
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	other, err := remotecommand.NewSPDYExecutorForTransports(transport, refusals{upgrader}, http.MethodPost, at)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, other, func(err error) bool {
		return streaming.IsUpgradeFailure(err) || streaming.IsHTTPSProxyError(err)
	})
}

// refusals are errors that [apierrors.IsForbidden] knows, where client-go has the text of the response
// alone.
type refusals struct{ spdy.Upgrader }

// NewConnection returns the connection that a response begins.
func (r refusals) NewConnection(response *http.Response) (httpstream.Connection, error) {
	conn, err := r.Upgrader.NewConnection(response)
	if err != nil && response.StatusCode == http.StatusForbidden {
		err = &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: err.Error()}}
	}
	return conn, err
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	kept bytes.Buffer
	most int
	more bool // was written than is kept
}

// Write never fails: the command could not go on.
func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.most-b.kept.Len())
	b.more = b.more || keep < len(p)
	b.kept.Write(p[:keep])
	return len(p), nil
}
