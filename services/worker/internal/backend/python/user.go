package python

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
)

// runsAs is a user of stubs that is not the worker's; nil is the worker's.
type runsAs struct {
	credential syscall.Credential
	// variables are those of the environment that name the user.
	variables []string
}

// findUser finds the user of stubs: its name, its number, or UID:GID of one that the
// system does not know. Errors have the reason config_invalid.
func findUser(text string) (*runsAs, error) {
	if text == "" {
		return nil, nil
	}
	failed := func(format string, args ...any) error {
		return errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: "+format, append([]any{backends.Python, userSetting, text}, args...)...)
	}
	if os.Geteuid() != 0 {
		return nil, failed("only a worker that runs as root can start stubs as another user")
	}
	if uid, gid, both := strings.Cut(text, ":"); both {
		n, err := numbersOf(uid, gid)
		if err != nil {
			return nil, failed("give a user's name, its number, or UID:GID")
		}
		return &runsAs{credential: syscall.Credential{Uid: n[0], Gid: n[1]}, variables: []string{"HOME=/", "USER=" + uid, "LOGNAME=" + uid}}, nil
	}
	u, err := user.Lookup(text)
	if err != nil {
		u, err = user.LookupId(text)
	}
	if err != nil {
		return nil, failed("the system knows no such user; give UID:GID to have one that it does not know")
	}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, failed("find the user's groups: %v", err)
	}
	n, err := numbersOf(append([]string{u.Uid, u.Gid}, groups...)...)
	if err != nil {
		return nil, failed("the user has no number: %v", err)
	}
	return &runsAs{
		credential: syscall.Credential{Uid: n[0], Gid: n[1], Groups: n[2:]},
		variables:  []string{"HOME=" + u.HomeDir, "USER=" + u.Username, "LOGNAME=" + u.Username},
	}, nil
}

func numbersOf(texts ...string) (list []uint32, err error) {
	for _, text := range texts {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return nil, err
		}
		list = append(list, uint32(n))
	}
	return list, nil
}

// process is who a process runs as; nil is the worker's user.
func (r *runsAs) process() *syscall.Credential {
	if r == nil {
		return nil
	}
	return &r.credential
}

// own gives the user the files of a directory, which have the worker's umask.
func (r *runsAs) own(dir string) error {
	if r == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(r.credential.Uid), int(r.credential.Gid)))
	})
}

// environ is the environment of a process of the user.
func (r *runsAs) environ(variables []string) []string {
	if r == nil {
		return variables
	}
	kept := slices.DeleteFunc(slices.Clone(variables), func(v string) bool {
		return slices.ContainsFunc(r.variables, func(own string) bool { return strings.HasPrefix(v, own[:strings.IndexByte(own, '=')+1]) })
	})
	return append(kept, r.variables...)
}
