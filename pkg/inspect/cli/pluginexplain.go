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
	"github.com/beeline-lb/beeline/pkg/model"
)

const pluginExplainLong = `Say what would happen to a new connection of a pod, step by step, and why.

The agent of the pod's node is asked, by beeline explain --from the pod's address; of a
pod with an address of each family, for both. A pod in the network namespace of its node
is asked about as a process of the node.

Of endpoints that get no connections 20 are shown, with -o wide, json and yaml all.

POD alone is in the namespace of the kubeconfig's context, SERVICE alone in that of the
pod.

Exit codes: 0 served, 1 no Service, no frontend of SERVICE for the pod, or no program sees
the connection (it goes its way untouched), 2 wrong usage, 3 no datapath, 4 failure,
5 refused, 6 dropped. Of several frontends it is that of the first one that is not served.`

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
	asked, err := questions(client, service)
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	list, err := p.explanations(ctx, cluster, agents[0], asked)
	if err != nil {
		return err
	}
	if len(list) == 0 { // an agent of a version that does not say why
		return fmt.Errorf("no frontend of %s for pod %s/%s on node %s: %w", service, namespace, name, client.Node, inspect.ErrNotFound)
	}
	err = p.print(map[string][]*inspect.Explanation{client.Node: list}, func(wide bool) string {
		return fmt.Sprintf("Pod %s/%s on node %s\n\n%s", namespace, name, client.Node, explanationsText(list, wide))
	})
	if err != nil {
		return err
	}
	return firstVerdict(list)
}

// explanations asks an agent about each address of a pod. A Service may have frontends of one family
// alone: that there is none for an address is an error when there is none for any.
func (p *plugin) explanations(ctx context.Context, cluster *kubectl.Cluster, agent kubectl.Agent, asked [][]string) (list []*inspect.Explanation, err error) {
	var without *answer[[]inspect.Explanation]
	for _, words := range asked {
		a := ask[[]inspect.Explanation](ctx, p, cluster, agent, words...)
		switch {
		case a.err != nil && a.code != ExitNotFound:
			return nil, merge(p, []answer[[]inspect.Explanation]{a}, nil)
		case a.err != nil && without == nil:
			without = &a
		}
		for i := range a.value {
			list = append(list, &a.value[i])
		}
	}
	if len(list) == 0 && without != nil {
		return nil, merge(p, []answer[[]inspect.Explanation]{*without}, nil)
	}
	return list, nil
}

// questions are the command lines by which a node is asked about a pod of it. The error is that the pod
// has no address of the family of the one that is asked about.
func questions(client *kubectl.Client, service string) (list [][]string, err error) {
	address, _, _ := strings.Cut(service, "/")
	to, errTo := netip.ParseAddrPort(address)
	if errTo != nil && !strings.Contains(service, "/") {
		service = client.Namespace + "/" + service
	}
	if len(client.Addresses) == 0 {
		return [][]string{{"explain", "--", service}}, nil
	}
	for _, from := range client.Addresses {
		addr, err := netip.ParseAddr(from)
		if errTo == nil && (err != nil || model.FamilyOf(addr) != model.FamilyOf(to.Addr())) {
			continue // asks for the other family
		}
		list = append(list, []string{"explain", "--from=" + from, "--", service})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no %s address, only %s", model.FamilyOf(to.Addr()), strings.Join(client.Addresses, ", "))
	}
	return list, nil
}
