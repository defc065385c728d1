package cli

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/kubectl"
)

const pluginExplainLong = `Say what would happen to a new connection of a pod, step by step, and why.

The agent of the pod's node is asked, by beeline explain --from the pod's address; of a
pod with an address of each family, for both. A pod in the network namespace of its node
is asked about as a process of the node.

POD alone is in the namespace of the kubeconfig's context, SERVICE alone in that of the
pod.

Exit codes: 0 served, 1 no Service, or no program sees the connection (it goes its way
untouched), 2 wrong usage, 3 no datapath, 4 failure, 5 refused, 6 dropped. Of several
frontends it is that of the first one that is not served.`

func (p *plugin) explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [NAMESPACE/]POD ADDRESS:PORT[/PROTOCOL] | [NAMESPACE/]SERVICE",
		Short: "Say what would happen to a connection of a pod, and why",
		Long:  pluginExplainLong,
		Example: `  kubectl beeline explain shop/cart-0 web
  kubectl beeline explain shop/cart-0 kube-system/kube-dns
  kubectl beeline explain cart-0 10.96.0.10:53/UDP`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &usageError{fmt.Errorf("name a pod, and an address and port or a service: two arguments, not %d", len(args)), cmd.CommandPath()}
			}
			return nil
		},
		ValidArgsFunction: p.completeExplain,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.explainPod(cmd.Context(), args[0], args[1])
		},
	}
	p.addTimeoutFlag(cmd, 20*time.Second)
	return cmd
}

// explainPod asks the agent of a pod's node about the pod's connections.
func (p *plugin) explainPod(ctx context.Context, pod, service string) error {
	cluster, err := kubectl.Open(p.options)
	if err != nil {
		return err
	}
	namespace, name, both := strings.Cut(pod, "/")
	if !both {
		namespace, name = cluster.Namespace, pod
	}
	client, err := cluster.Client(ctx, namespace, name)
	if err != nil {
		return err
	}
	agents, err := cluster.Agents(ctx, []string{client.Node})
	if err != nil {
		return err
	}
	var list []*inspect.Explanation
	for _, words := range questions(client, service) {
		a := ask[[]inspect.Explanation](ctx, p, cluster, agents[0], words...)
		if a.err != nil {
			return merge(p, []answer[[]inspect.Explanation]{a}, nil)
		}
		for i := range a.value {
			list = append(list, &a.value[i])
		}
	}
	err = p.print(map[string][]*inspect.Explanation{client.Node: list}, func(bool) string {
		return fmt.Sprintf("Pod %s/%s on node %s\n\n%s", namespace, name, client.Node, explanationsText(list))
	})
	if err != nil {
		return err
	}
	return firstVerdict(list)
}

// questions are the command lines by which a node is asked about a pod of it.
func questions(client *kubectl.Client, service string) (list [][]string) {
	address, _, _ := strings.Cut(service, "/")
	to, err := netip.ParseAddrPort(address)
	if err != nil && !strings.Contains(service, "/") {
		service = client.Namespace + "/" + service
	}
	if len(client.Addresses) == 0 {
		return [][]string{{"explain", "--", service}}
	}
	for _, from := range client.Addresses {
		if addr, errAddr := netip.ParseAddr(from); err == nil && (errAddr != nil || addr.Is4() != to.Addr().Unmap().Is4()) {
			continue // asks for the other family
		}
		list = append(list, []string{"explain", "--from=" + from, "--", service})
	}
	return list
}
