package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// shells are those that completion can be generated for.
var shells = []string{"bash", "fish", "zsh"}

func (c *command) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Print the completion script of a shell",
		Long: `Print the completion script of a shell.

  bash  source <(beeline completion bash)
  fish  beeline completion fish | source
  zsh   source <(beeline completion zsh)`,
		ValidArgs: shells,
		Args:      cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch strings.Join(args, " ") {
			case "bash":
				return cmd.Root().GenBashCompletionV2(c.Out, true)
			case "fish":
				return cmd.Root().GenFishCompletion(c.Out, true)
			case "zsh":
				return cmd.Root().GenZshCompletion(c.Out)
			}
			err := fmt.Errorf("name one shell of %s", strings.Join(shells, ", "))
			return &usageError{err, cmd.CommandPath()}
		},
	}
}

// completeServices offers NAMESPACE/NAME, or NAME beside --namespace.
func (c *command) completeServices(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	services, err := read(c, (*inspect.Datapath).Services)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, s := range inNamespace(c, services, func(s inspect.Service) string { return s.Namespace }) {
		name := s.Namespace + "/" + s.Name
		if c.namespace != "" {
			name = s.Name
		}
		if strings.HasPrefix(name, typed) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeNamespaces offers the namespaces of Services.
func (c *command) completeNamespaces(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	services, err := read(c, (*inspect.Datapath).Services)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, s := range services {
		if strings.HasPrefix(s.Namespace, typed) {
			names = append(names, s.Namespace)
		}
	}
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}
