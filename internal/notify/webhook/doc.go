// Package webhook notifies other systems that a request waits for approval or has been decided. It sends signed calls as in
// Standard Webhooks (https://www.standardwebhooks.com), or messages for Slack.
//
// It must never send free text of a sandbox or a secret, never call an address that the operator has not allowed, never
// follow a redirect, and never let a response decide anything.
package webhook
