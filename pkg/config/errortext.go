package config

import "github.com/beeline-lb/beeline/pkg/setting"

// ErrorText returns the text of an error of any package of the agent, with flags in place of
// the fields that it names by [setting.Error].
func ErrorText(err error) string {
	flags := make(map[string]string)
	for name, path := range newFlagSet(Default()).fields {
		flags[path] = "--" + name
	}
	return setting.Text(err, func(field string) string { return flags[BeelineKind+"."+field] })
}
