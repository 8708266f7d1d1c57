package confine

import (
	"os"
	"strings"
)

// lacks says what a kernel or a machine lacks, by a file that shows it.
var lacks = []struct {
	path, content string // without content, the file is missing
	missing       string
}{
	{"/proc/self/ns/user", "", "the kernel has no user namespaces (CONFIG_USER_NS): use another kernel"},
	{"/proc/self/ns/net", "", "the kernel has no network namespaces (CONFIG_NET_NS): use another kernel"},
	{"/proc/self/ns/pid", "", "the kernel has no process namespaces (CONFIG_PID_NS): use another kernel"},
	{"/proc/self/ns/ipc", "", "the kernel has no IPC namespaces (CONFIG_IPC_NS): use another kernel"},
	{
		"/proc/sys/user/max_user_namespaces", "0",
		"user namespaces are forbidden here: set the sysctl user.max_user_namespaces to 10000, unless this is already a confined program, which cannot confine another",
	},
	{"/proc/sys/user/max_net_namespaces", "0", "network namespaces are forbidden here: set the sysctl user.max_net_namespaces to 10000"},
	{"/proc/sys/user/max_pid_namespaces", "0", "process namespaces are forbidden here: set the sysctl user.max_pid_namespaces to 10000"},
	{"/proc/sys/user/max_mnt_namespaces", "0", "mount namespaces are forbidden here: set the sysctl user.max_mnt_namespaces to 10000"},
	{"/proc/sys/kernel/unprivileged_userns_clone", "0", "only root may make user namespaces here: set the sysctl kernel.unprivileged_userns_clone to 1"},
	{
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
		"AppArmor forbids user namespaces to programs without a profile: give brevet a profile with the rule userns, or set the sysctl kernel.apparmor_restrict_unprivileged_userns to 0",
	},
}

// elsewhere is the way for machines on which nothing that lacks knows is missing.
const elsewhere = "inside a container, let the container have no network instead, and run the program in it with brevet egress connect"

// Explain adds to an error of the start what this machine lacks, and what to do.
func (b *Box) Explain(err error) error {
	for _, one := range lacks {
		content, failed := os.ReadFile(one.path)
		if one.content == "" {
			if _, failed := os.Lstat(one.path); os.IsNotExist(failed) {
				return cannot("%s (%w)", one.missing, err)
			}
			continue
		}
		if failed == nil && strings.TrimSpace(string(content)) == one.content {
			return cannot("%s (%w)", one.missing, err)
		}
	}
	return cannot("%w: %s", err, elsewhere)
}
