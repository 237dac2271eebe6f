"""What the soak is made of: who works, who disturbs them, and who looks at what is left."""
