"""What a submission asks once templates, routes and rules have spoken."""
