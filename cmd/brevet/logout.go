package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// LogoutCmd is `brevet logout`.
type LogoutCmd struct{}

// Run forgets the login, and has the provider forget it too where it can. That the provider is away keeps nobody here.
func (*LogoutCmd) Run(ctx context.Context, con *console) error {
	l, err := readLogin()
	if errors.Is(err, errLoginEnded) {
		return printLogout(con, "you were not logged in")
	}
	path, pathErr := loginFile()
	if removeErr := errors.Join(pathErr, os.Remove(path)); removeErr != nil {
		return fmt.Errorf("forgetting the login: %w", removeErr)
	}
	if err == nil { // else it was no login that could be read
		if err := l.revoke(ctx); err != nil {
			con.say("the provider was not told: " + quoteProvider(err.Error()))
		}
	}
	return printLogout(con, "logged out")
}

func printLogout(con *console, text string) error {
	if con.json {
		return con.encode(map[string]bool{"logged_in": false})
	}
	_, err := fmt.Fprintln(con.out, text)
	return err
}
