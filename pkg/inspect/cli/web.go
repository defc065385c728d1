package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/health"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/web"
)

const webLong = `Serve a page that shows in a browser what beeline top shows at a terminal: connections a second and
refused ones as live charts, Services with their backends, where connections go, and what was
refused or dropped: one by one with its client, and counted by Service and by reason.

It listens on this node alone unless --listen says otherwise; who reaches the address reads the page,
without a password. From another machine:

  ssh -t -L 10245:127.0.0.1:10245 NODE sudo beeline web

or, in the agent's pod,

  kubectl -n kube-system exec -it POD -- beeline web
  kubectl -n kube-system port-forward POD 10245

then open http://127.0.0.1:10245/. The page answers at IP addresses and as localhost, under no other
name, and changes nothing. The maps are read only while it is open somewhere, once an interval for
all who look; meanwhile it listens to what is refused and to new connections, as two of the four who
can (beeline monitor).`

func (c *command) webCommand() *cobra.Command {
	var listen string
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Show Services, backends and refusals as a live page",
		Long:  webLong,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkInterval(interval); err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return c.serveWeb(ctx, listen, interval)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", fmt.Sprintf("127.0.0.1:%d", config.WebPort), "address and port of the page; port 0 takes a free one")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time that rates are of")
	return cmd
}

// serveWeb serves the page until ctx ends.
func (c *command) serveWeb(ctx context.Context, listen string, interval time.Duration) error {
	sample := func() (*inspect.Sample, error) { return read(c, (*inspect.Datapath).Sample) }
	if _, err := sample(); err != nil { // what is wrong at the start belongs to the shell
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	page := web.New(web.Options{
		Read:     sample,
		Listen:   func(o inspect.EventOptions) (web.Listener, error) { return inspect.Listen(c.bpffs, o) },
		Interval: interval,
	})
	defer page.Close()
	server := health.NewHTTPServer(page)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	fmt.Fprintf(c.Out, "Open http://%s/, end with Ctrl+C.\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
