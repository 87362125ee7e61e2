"""The description that others read: /openapi.json and /docs, made from agent/http/api."""
