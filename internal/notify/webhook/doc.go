// Package webhook tells systems of others that something waits for people, or has been decided, with signed calls as in
// Standard Webhooks (https://www.standardwebhooks.com), or with messages for Slack.
//
// It must never send free text of a sandbox or a secret, never call an address that the operator has not opened, never
// follow a redirect, and never let an answer decide anything.
package webhook
