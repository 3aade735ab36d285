"""Graph-based credit assignment for reinforcement learning of LLM agents."""
